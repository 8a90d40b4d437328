"""The sections of a configuration: keys, defaults and what they mean. What no file says has the paper's value."""

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from divopd.config.machine import Part
from divopd.environments import find_entry
from divopd.environments.pool import TIMEOUT_S
from divopd.errors import InputError
from divopd.models.engine import EngineName
from divopd.models.optimization import Lora, Optimization

LoggerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Name = Annotated[str, Field(min_length=1)]


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
    tool_parser: Annotated[str, Field(pattern=r"^(auto|vllm:[\w.-]+)$")] = "auto"
    """Of a program: what finds tool calls in answers. auto: transformers, with the tokenizer's own response template if
    it brings one; vllm:NAME: a parser of vLLM, where that is installed, such as vllm:hermes."""
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
    """Processes that share the weights (FSDP2); on CUDA each has a device of its own."""
    nodes: int = 1
    """Machines of a cluster over which the ranks are spread evenly; those of each hold all weights (HSDP)."""
    address: str = "127.0.0.1"
    """Where the ranks meet: an IPv4 address of the first machine. Whoever reaches it can reach the ranks."""
    port: int = 0
    """The port of that address; 0: a free one."""
    hung_after_s: float = 300.0
    """A rank that is not heard for so long hangs: all ranks are ended and go on from the last checkpoint."""

    def __post_init__(self) -> None:
        counts = ("max_tokens", "updates", "checkpoint_every", "ranks", "nodes")
        for name in (*counts, "lr", "max_grad_norm", "max_wait_s", "hung_after_s"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected more than 0")
        if self.ranks % self.nodes:
            raise InputError(f"ranks is {self.ranks}; expected as many on each of the {self.nodes} machines (nodes)")
        if not 0 <= self.port < 2**16:
            raise InputError(f"port is {self.port}; expected 0 for a free one, or a number below 65536")
        try:
            IPv4Address(self.address)
        except ValueError:
            raise InputError(f"address is {self.address!r}; expected an IPv4 address such as 10.0.0.1") from None
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


Way = Literal["folder", "ray", "nccl", "ipc"]


class WeightsPart(Part):
    """How published weights get to explorers, and which of them stay on disk."""

    way: Way | None = None
    """folder: files of the run; ray: Ray's object store; nccl, ipc: by vLLM from GPU to GPU; null: ray on a cluster."""

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
