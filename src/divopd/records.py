"""What an update and an evaluation showed and cost: frozen types, and the only code that makes JSON of them and back.

Files and requests hold the JSON; everything else reads attributes. A new figure is added here, where it is measured and
where it is shown, nowhere else.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

Clock = Literal["virtual", "wall"]  # whose seconds a run counts: stated costs, or real time
Json = dict[str, Any]
T = TypeVar("T")

GAP_LIMIT = 0.1  # nats, mean; two updates of the default setting make 0.02, and so does vLLM in bfloat16


@dataclass(frozen=True)
class BatchFigures:
    """How one batch is composed. Shares are of the batch's prompt + response tokens."""

    rows: int
    rollouts: int
    effective_rollouts: float  # 1 / Σ p_r²
    top1_share: float  # max p_r
    turns_per_rollout: float
    dead_share: float  # rows without a valid token
    kl_per_token: float  # Σ s / Σ |V|, at the cached scores
    age: float  # mean of update - version
    disagreement_sd: float  # over rollouts, of their summed disagreement
    tokens: int


@dataclass(frozen=True)
class LogprobGap:
    """How far the learner's log probabilities are from those at generation, in nats, on a batch's newest rows.

    On rows of the learner's own version this is the rounding between two engines, or a fault in one of them. On older
    rows the updates since then are in it, too.
    """

    version: int  # of those rows
    tokens: int
    mean: float  # of the absolute differences
    largest: float

    def warning(self, *, update: int) -> str | None:
        """What to tell when the learner and the engine that generated a batch's rows no longer agree on them."""
        if self.mean <= GAP_LIMIT:
            return None
        return (
            f"update {update}: the learner's log probabilities differ from those at generation by {self.mean:.3g} nats "
            f"on average (rows {update - self.version} updates old); expected at most {GAP_LIMIT}: check that the "
            "explorers load their weights whole, or lower learner.lr"
        )


@dataclass(frozen=True)
class UpdateFigures:
    """What the learner measured in one update."""

    rows: int
    dead_rows: int
    valid_tokens: int
    tokens: int  # prompt + response of every row
    computed_tokens: int  # those that the model read, shared prefixes once
    loss: float
    learner_kl_per_token: float  # student minus teacher at the learner's own weights, right before the update
    gradient_norm: float  # before clipping
    logprob_gap: LogprobGap | None  # None if there is no valid token
    seconds: dict[str, float]  # wall seconds by stage: pack, forward, backward, step
    masked_tokens: int = 0  # response tokens that the teacher does not know (teacher_mask is 0)
    # None, here and in every record below: it was written before there was such a figure
    clipped_norm: float | None = None  # of the gradient, after clipping
    lr: float | None = None  # the learning rate of this update
    memory_bytes: int | None = None  # the most that the learner has held so far: on its GPU, else its whole process
    processor_s: dict[str, float] | None = None  # by stage, of all threads: what others do on the machine is not in it

    def warning(self, *, update: int) -> str | None:
        """What to tell of tokens that the student should not have been able to sample."""
        if not self.masked_tokens:
            return None
        return (
            f"update {update}: {self.masked_tokens} response tokens are masked, because the teacher does not know "
            "them; expected none: use an engine for the student that can forbid ids"
        )


@dataclass(frozen=True)
class QueueFigures:
    """What had arrived when an update was recorded, and what left the pool with it: turns unless it says rollouts."""

    rollouts_put: int  # since the start of the run
    turns_put: int
    queued: int  # not read by any update yet
    stale: int
    aged_out: int
    invalid: int
    rollouts_used: int  # trained for the first time by this update
    rollouts_unused: int  # gone with this update without a trained turn
    drained: int | None  # read into the pool by this update, not counting stale ones
    pending: int | None = None  # read, valid, and still not selected after this update
    invalid_by_reason: dict[str, int] | None = None  # what the gate dropped, and dead rows where there is no gate


@dataclass(frozen=True)
class Spent:
    """What a run has cost since its start, by role."""

    generated_tokens: int = 0  # explorers
    scored_tokens: int = 0  # the teacher; prompt + response of every turn
    trained_tokens: int = 0  # the learner; every row whole
    computed_tokens: int = 0  # the learner; shared prefixes once
    learner_s: float = 0.0  # the learner's seconds without waiting, on the run's own clock


@dataclass(frozen=True)
class UpdateRecord:
    """One update of a run. The first record of an update counts, also when a resumed learner serves it again."""

    update: int
    clock: Clock
    elapsed_s: float  # since the start of the run
    waited_s: float  # the learner, for this batch
    starved_s: float  # of it, with nothing in the queue that could be trained
    batch: BatchFigures
    learner: UpdateFigures | None  # None: a replay, which trains nothing
    queue: QueueFigures
    spent: Spent

    @property
    def warning(self) -> str | None:
        """What a user should hear about this update."""
        gap = self.learner.logprob_gap if self.learner else None
        said = [part.warning(update=self.update) for part in (gap, self.learner) if part is not None]
        return "; ".join(sentence for sentence in said if sentence) or None


@dataclass(frozen=True)
class Answers:
    """What the student answered in some rollouts, counted in turns unless it says tokens."""

    turns: int
    tokens: int  # of all responses
    longest: int  # tokens
    cut: int  # ended by the limit of tokens
    without_action: int  # no action could be read from the response
    invalid_actions: int  # an action was read, and the environment did not understand it


@dataclass(frozen=True)
class ProgramFigures:
    """What the agent programs of a run asked for and heard, over all attempts at training rollouts that have ended."""

    attempts: int  # programs that were started and have ended
    broke_off: int  # of them
    calls: int  # that were answered: one turn each
    with_tools: int  # calls that offered tools
    tool_calls: int  # answers with a tool call in them, or with several
    unparsed: int  # answers that look like a tool call and do not parse: the program got them as text
    refused: int  # calls that got a sentence and no answer (400, 413, 429): no turn
    undelivered: int  # answers that the program has not heard


@dataclass(frozen=True)
class EvaluationRecord:
    """How often a policy version succeeded on the fixed evaluation tasks. Rates are in percent."""

    version: int
    success_rate: float
    tasks: int
    turns: float  # mean of a rollout
    by_kind: dict[str, float]  # success rate by kind of task
    answers: dict[str, Answers] | None = None  # by kind of task


class Observer(Protocol):
    """Who hears of a run as it goes on: the terminal, loggers, tests."""

    def updated(self, record: UpdateRecord) -> None: ...

    def evaluated(self, record: EvaluationRecord) -> None: ...

    def told(self, sentence: str) -> None:
        """Something happened that is no figure: a process was started again, a teacher is away."""
        ...


class Observers:
    """Several observers as one, each told in this order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def updated(self, record: UpdateRecord) -> None:
        for observer in self._observers:
            observer.updated(record)

    def evaluated(self, record: EvaluationRecord) -> None:
        for observer in self._observers:
            observer.evaluated(record)

    def told(self, sentence: str) -> None:
        for observer in self._observers:
            observer.told(sentence)


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_update(record: UpdateRecord) -> Json:
    """A flat object: composition and queue beside each other, `learner` and `spent` inside it.

    The seconds are under `virtual_s` or `wall_s`, so that nobody adds up seconds of two kinds.
    """
    return {
        "update": record.update,
        **asdict(record.batch),
        "learner": None if record.learner is None else asdict(record.learner),
        "spent": asdict(record.spent),
        f"{record.clock}_s": record.elapsed_s,
        "waited_s": record.waited_s,
        "starved_s": record.starved_s,
        **asdict(record.queue),
    }


def decode_update(data: Mapping[str, Any]) -> UpdateRecord:
    """The record of what `encode_update` made; a ValueError if it is none."""
    try:
        clock = _clock(data)
        return UpdateRecord(
            update=_whole(data["update"], "update"),
            clock=clock,
            elapsed_s=_number(data[f"{clock}_s"], f"{clock}_s"),
            waited_s=_number(data["waited_s"], "waited_s"),
            starved_s=_number(data["starved_s"], "starved_s"),
            batch=_picked(BatchFigures, data),
            learner=None if data["learner"] is None else _learner(data["learner"]),
            queue=_picked(QueueFigures, data),
            spent=_picked(Spent, data["spent"]),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not the record of an update ({error!r})") from None


def encode_evaluation(record: EvaluationRecord) -> Json:
    return asdict(record)


def decode_evaluation(data: Mapping[str, Any]) -> EvaluationRecord:
    """The record of what `encode_evaluation` made; a ValueError if it is none."""
    try:
        return _picked(EvaluationRecord, data)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"not the record of an evaluation ({error!r})") from None


def _clock(data: Mapping[str, Any]) -> Clock:
    found = [clock for clock in get_args(Clock) if f"{clock}_s" in data]
    if len(found) != 1:
        raise TypeError(f"it has the seconds of {len(found)} clocks, expected those of one")
    return found[0]


def _learner(data: Mapping[str, Any]) -> UpdateFigures:
    gap = data["logprob_gap"]
    return _picked(UpdateFigures, data, logprob_gap=None if gap is None else _picked(LogprobGap, gap))


def _picked(kind: type[T], data: Mapping[str, Any], **decoded: Any) -> T:
    """The fields of a type out of an object that may hold more, each checked; `decoded` are those that need more."""
    values: Json = dict(decoded)
    for field in fields(kind):  # pyright: ignore[reportArgumentType] - every caller gives a dataclass
        if field.name not in decoded:
            optional = type(None) in get_args(field.type)
            value = data.get(field.name) if optional else data[field.name]
            values[field.name] = CHECKS[field.type](value, field.name)
    return kind(**values)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, expected a whole number")
    return value


def _number(value: Any, name: str) -> float:
    """Also one that is not finite: a loss may explode."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, expected a number")
    return float(value)


def _numbers(value: Any, name: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {value!r}, expected numbers by name")
    return {str(key): _number(item, f"{name}.{key}") for key, item in cast(Json, value).items()}


def _counts(value: Any, name: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {value!r}, expected whole numbers by name")
    return {str(key): _whole(item, f"{name}.{key}") for key, item in cast(Json, value).items()}


def _answers(value: Any, name: str) -> dict[str, Answers]:
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in cast(Json, value).values()):
        raise TypeError(f"{name} is {value!r}, expected answers by kind of task")
    return {str(kind): _picked(Answers, item) for kind, item in cast(Json, value).items()}


def _or_none(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """None: the record was written before there was such a figure."""
    return lambda value, name: None if value is None else check(value, name)


CHECKS: dict[Any, Callable[[Any, str], Any]] = {
    int: _whole,
    float: _number,
    dict[str, float]: _numbers,
    int | None: _or_none(_whole),
    float | None: _or_none(_number),
    dict[str, float] | None: _or_none(_numbers),
    dict[str, int] | None: _or_none(_counts),
    dict[str, Answers] | None: _or_none(_answers),
}
