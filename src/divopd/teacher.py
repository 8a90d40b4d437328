"""The frozen teacher: it scores the student's tokens, a rollout in one pass (specification §6.2); the preflight."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import compress, groupby
from typing import Any, Protocol, TypeVar

import numpy as np

from divopd.errors import AlignmentError, TeacherAwayError, WrongAnswerError
from divopd.failures import FIRST, Failures
from divopd.models.engine import Engine
from divopd.models.policy import Policy, Response
from divopd.prompts.vocabulary import Spelling, foreign_ids, named, spelled_out
from divopd.turns import Rollout, Turn
from divopd.validity import valid_mask, why_invalid, with_valid_tokens

TOLERANCE = 1e-3  # nats; rounding between two ways of reading the same tokens
ROUGH_TOLERANCE = 0.25  # in half precision, or where other kernels score than generate
RETRY_S = 1.0
TELL_S = 60.0  # between two words about a teacher that is still away
T = TypeVar("T")


@dataclass(frozen=True)
class Teachers:
    """Who teaches which task: the first pattern that fits its name counts, then the default.

    `foreign`: the student's ids that a teacher's tokenizer does not have, and how it reads their text. A teacher whose
    first answers are all wrong is borne for `first` rollouts.
    """

    default: Engine
    by_task: Mapping[str, Engine] = field(default_factory=dict)
    foreign: Spelling = field(default_factory=dict)
    first: int = FIRST
    _wrong: dict[int, Failures] = field(default_factory=dict, init=False, repr=False, compare=False)  # by engine's id

    def of(self, task: str) -> Engine:
        """The teacher of a task."""
        return first_fitting(task, self.by_task, default=self.default)

    def shares(self, rollouts: Sequence[Rollout]) -> list[tuple[Engine, list[Rollout]]]:
        """The rollouts of each teacher, in order."""
        shares: dict[int, tuple[Engine, list[Rollout]]] = {}
        for rollout in rollouts:
            teacher = self.of(rollout.task)
            shares.setdefault(id(teacher), (teacher, []))[1].append(rollout)
        return list(shares.values())

    def score(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Every rollout scored by its teacher, in order; see score_share."""
        scored = {r.id: r for teacher, share in self.shares(rollouts) for r in self.score_share(teacher, share)}
        return [scored[rollout.id] for rollout in rollouts]

    def score_share(
        self,
        teacher: Engine,
        share: Sequence[Rollout],
        *,
        ask: Callable[[Callable[[], list[Rollout]]], Sequence[Rollout]] = lambda score: score(),
    ) -> Iterator[Rollout]:
        """Rollouts of one teacher, scored; one about which its answer is wrong comes without scores, and says why.

        If an answer to all of them is wrong, each is asked about alone: only those pay whose own answer is wrong.
        An AlignmentError: more answers were wrong than a run bears (failures.py). `ask` may answer with nothing.
        """
        try:
            scored = ask(partial(score_rollouts, teacher, share, foreign=self.foreign))
        except WrongAnswerError as error:
            if len(share) > 1:
                for rollout in share:
                    yield from self.score_share(teacher, [rollout], ask=ask)
                return
            scored = [_without_scores(share[0], str(error))]
        for rollout in scored:
            yield rollout
            self._count(teacher, rollout)  # after it was kept: it may be one too many

    def _count(self, teacher: Engine, rollout: Rollout) -> None:
        wrong = self._wrong.setdefault(id(teacher), Failures(first=self.first))
        if wrong.count(failed=rollout.wrong_answer is not None):
            raise AlignmentError(
                f"the answers about {wrong.failed} of the last {wrong.ended} rollouts of a teacher were wrong, the "
                f"last one about {rollout.id}: {rollout.wrong_answer}; then go on with --resume"
            )

    def retrying(
        self,
        *,
        limit_s: float,
        tells: Callable[["Away"], None],
        waits: Callable[[], None],
        ends: Callable[["Away"], None] = lambda away: None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> "Teachers":
        """The same teachers, asked again while they are away; see Absence and Retrying."""

        def patient(teacher: Engine) -> Retrying:
            return Retrying(teacher, Absence(tells, ends, limit_s=limit_s), waits, sleep)

        others = {pattern: patient(other) for pattern, other in self.by_task.items()}
        return Teachers(patient(self.default), others, self.foreign, self.first)


def first_fitting(task: str, by_task: Mapping[str, T], *, default: T) -> T:
    """What the first pattern names that fits the task."""
    return next((other for pattern, other in by_task.items() if fnmatchcase(task, pattern)), default)


@dataclass(frozen=True)
class Away:
    """A teacher that cannot be reached: who, why, since when, and until when it is waited for."""

    who: str
    error: str
    since: float  # seconds of the epoch
    gives_up: float
    seconds: float  # since it was first noticed; 0: just now

    @property
    def sentence(self) -> str:
        """For the terminal and the page."""
        begun = f"away since {_clock(self.since)}" if self.seconds else "away"
        return f"{self.who} is {begun}, its rollouts wait until {_clock(self.gives_up)} at most: {self.error}"


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


class Absence:
    """How long a teacher has been away. `tells` hears of it at once and then every minute, and `ends` when it answers;
    after `limit_s` seconds the error is the caller's."""

    def __init__(
        self,
        tells: Callable[[Away], None],
        ends: Callable[[Away], None] = lambda away: None,
        *,
        limit_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tells, self._ends, self._limit_s, self._now = tells, ends, limit_s, now
        self._away: Away | None = None
        self._began = self._told = self._asked = 0.0

    @property
    def away(self) -> Away | None:
        """What is known of it while it lasts."""
        return self._away

    @property
    def is_asked_again(self) -> bool:
        """Whether it is there, or enough time has passed since it was asked in vain."""
        return self._away is None or self._now() - self._asked >= RETRY_S

    def noticed(self, error: TeacherAwayError) -> None:
        """It could not be reached just now."""
        self._asked = now = self._now()
        if self._away is None:
            moment = time.time()
            self._away, self._began = Away(error.who, str(error), moment, moment + self._limit_s, 0.0), now
        elif now - self._began > self._limit_s:
            raise TeacherAwayError(
                f"{error}; it was away for {self._limit_s:g} s (teacher.away_limit_s)", who=error.who
            )
        elif now - self._told < TELL_S:
            return
        else:
            self._away = replace(self._away, error=str(error), seconds=now - self._began)
        self._told = now
        self._tells(self._away)

    def ended(self) -> None:
        """It answers."""
        if self._away is not None:
            self._ends(replace(self._away, seconds=self._now() - self._began))
        self._away = None


class Retrying:
    """A teacher that is asked again while it cannot be reached; `waits`, then `sleep`, before every new try."""

    def __init__(
        self,
        engine: Engine,
        absence: Absence,
        waits: Callable[[], None],
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._engine, self._absence, self._waits, self._sleep = engine, absence, waits, sleep
        self.tokenizer, self.exact = engine.tokenizer, engine.exact

    @property
    def context_length(self) -> int | None:
        return self._engine.context_length

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        wish = {"temperature": temperature, "max_tokens": max_tokens, "seeds": seeds}
        return self._until_there(lambda: respond_or_away(self._engine, prompts, **wish))

    def score(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[np.ndarray]]:
        return self._until_there(lambda: self._engine.score(sequences, spans))

    def _until_there(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                answer = ask()
                self._absence.ended()
                return answer
            except WrongAnswerError:
                self._absence.ended()
                raise
            except TeacherAwayError as error:
                self._absence.noticed(error)
            self._waits()
            self._sleep(RETRY_S)


def respond_or_away(
    teacher: Policy, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
) -> list[Response]:
    """A teacher's responses in a student's place. One that answers something else is away: it is asked again, because
    the rollout that waits for it cannot do without."""
    try:
        return teacher.respond(prompts, temperature=temperature, max_tokens=max_tokens, seeds=seeds)
    except WrongAnswerError as error:
        raise TeacherAwayError(f"{error}; it is asked again") from None


def score_rollouts(teacher: Policy, rollouts: Sequence[Rollout], *, foreign: Spelling | None = None) -> list[Rollout]:
    """The same rollouts with the teacher's log probabilities of every student token, and the number that is valid.

    A turn whose prompt was cut, or without a token, is not scored: it is a dead row. Nor is one whose shared prompt
    holds a `foreign` id. The teacher reads the text of a foreign id in a response, and says nothing of the id itself.
    """
    readings = [reading for rollout in rollouts for reading in _readings(rollout, foreign or {})]
    answers = teacher.score([reading.ids for reading in readings], [reading.spans for reading in readings])
    scored = {r.turn.key: _scored(r, answer) for r, answer in zip(readings, answers, strict=True)}
    turns = [tuple(scored.get(turn.key, turn) for turn in rollout.turns) for rollout in rollouts]
    return [
        with_valid_tokens(replace(rollout, turns=those, teacher_prompts=None))
        for rollout, those in zip(rollouts, turns, strict=True)
    ]


def _without_scores(rollout: Rollout, reason: str) -> Rollout:
    """A rollout of which nothing can be trained: what a teacher said of it is not kept, only why not."""
    bare = tuple(replace(turn, teacher_logprobs=None, teacher_mask=None) for turn in rollout.turns)
    return with_valid_tokens(replace(rollout, turns=bare, teacher_prompts=None, wrong_answer=reason))


@dataclass(frozen=True)
class _Reading:
    """What the teacher reads of a turn. `known` says of each response token whether its tokenizer has it."""

    turn: Turn
    ids: list[int]
    known: list[bool]
    spans: list[tuple[int, int]]  # of the known tokens, in order


def _readings(rollout: Rollout, foreign: Spelling) -> Iterator[_Reading]:
    own = rollout.teacher_prompts
    for turn, prompt in zip(rollout.turns, own or [turn.prompt_ids for turn in rollout.turns], strict=True):
        if turn.prompt_truncated or not turn.response_ids or not foreign.keys().isdisjoint(prompt):
            continue
        ids, spans = list(prompt), list[tuple[int, int]]()
        known = [id_ not in foreign for id_ in turn.response_ids]
        for is_known, tokens in groupby(turn.response_ids, key=lambda id_: id_ not in foreign):
            start = len(ids)
            ids += spelled_out(tokens, foreign)
            if is_known:
                spans.append((start, len(ids)))
        yield _Reading(turn, ids, known, spans)


def _scored(reading: _Reading, answer: Sequence[np.ndarray]) -> Turn:
    turn, scores = reading.turn, [score for part in answer for score in part.tolist()]
    if len(scores) != sum(reading.known):
        raise AlignmentError(
            f"rollout {turn.rollout} turn {turn.turn}: the teacher returned {len(scores)} log probs for "
            f"{sum(reading.known)} response tokens; check that both models use the same tokenizer"
        )
    if all(reading.known):
        return replace(turn, teacher_logprobs=scores)
    left = iter(scores)
    values = [next(left) if known else float("nan") for known in reading.known]
    return replace(turn, teacher_logprobs=values, teacher_mask=[int(known) for known in reading.known])


# ── preflight ─────────────────────────────────────────────────────────────────────────────────────────────────────


def check_vocabularies(student: Any, teacher: Any, *, role: str = "teacher") -> None:
    """Both tokenizers must give every token the same id; the message says what differs.

    Tokens that were added to one of them only (a marker for thoughts, say) are no obstacle here as long as no id is
    taken: those of the student are not sampled, and no shared prompt may hold them (`check_shared_prompt`).
    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    added = student.get_added_vocab().keys() | teacher.get_added_vocab().keys()
    lacking = sorted(ours.keys() - theirs.keys() - added) or sorted(theirs.keys() - ours.keys() - added)
    moved = sorted(token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token])
    names = {id_: token for token, id_ in theirs.items()}
    taken = sorted(token for token, id_ in ours.items() if names.get(id_, token) != token)
    if lacking or moved or taken:
        what = "only one of them has" if lacking else "these have other ids:"
        raise AlignmentError(
            f"student and {role} have different vocabularies ({len(ours)} and {len(theirs)} tokens; {what} "
            f"{(lacking or moved or taken)[:3]}); use a teacher with the student's tokenizer"
        )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(student, name) != getattr(teacher, name):
            raise AlignmentError(
                f"{name} is {getattr(student, name)} for the student and {getattr(teacher, name)} for the {role}; "
                "use a teacher with the student's special tokens"
            )


def check_shared_prompt(prompt: Sequence[int], student: Any, teacher: Any, *, role: str = "teacher") -> None:
    """No id that the student's tokenizer writes into a prompt may be unknown to the teacher's; says the share."""
    foreign = foreign_ids(student, teacher)
    held = [id_ for id_ in prompt if id_ in foreign]
    if held:
        raise AlignmentError(
            f"the {role}'s tokenizer does not have {len(held)} of the {len(prompt)} token ids "
            f"({len(held) / len(prompt):.1%}) of a shared prompt: {named(held, student)}; set teacher.prompt to own, "
            "so that the teacher reads the history in its own chat template and tokenizer"
        )


def check_masked(turns: Sequence[Turn], foreign: Spelling, *, role: str = "teacher") -> None:
    """No valid token of scored turns may be one that the teacher's tokenizer does not have; says the share."""
    valid = [
        id_ for turn in turns if why_invalid(turn) is None for id_ in compress(turn.response_ids, valid_mask(turn))
    ]
    held = [id_ for id_ in valid if id_ in foreign]
    if held:
        raise AlignmentError(
            f"{len(held)} of {len(valid)} tokens ({len(held) / len(valid):.1%}) that the {role} scored are ids which "
            f"its tokenizer does not have, such as {held[0]}; expected them to be masked: report this as a bug"
        )


def check_alignment(
    policy: Policy, *, role: str, prompt: Sequence[int], max_tokens: int, tolerance: float = TOLERANCE
) -> float:
    """Let a model score its own response as a teacher would; returns the largest difference.

    With teacher = student the advantage must be 0 everywhere, and a shift by one token must be seen. An AlignmentError
    says which of the two does not hold.
    """
    [response] = policy.respond([prompt], temperature=1.0, max_tokens=max(max_tokens, 2), seeds=[0])
    whole, start = [*prompt, *response.ids], len(prompt)
    [[own]] = policy.score([whole], [[(start, len(whole))]])
    worst = float(np.abs(own - response.logprobs).max())
    if not worst <= tolerance:
        raise AlignmentError(
            f"the {role}'s own score of its response differs from what it sampled by {worst:.3g} nats; expected at "
            f"most {tolerance}: scoring and generation do not read the same tokens"
        )
    [[shifted]] = policy.score([whole], [[(start - 1, len(whole) - 1)]])
    if np.abs(shifted - own).max() <= max(TOLERANCE, 2 * worst):
        raise AlignmentError(
            f"the {role}'s scores shifted by one token look the same as the right ones; it cannot be checked"
        )
    return worst


class HasContext(Protocol):
    """Anything that says how much it can read: an engine, or the facts of a model's folder."""

    @property
    def context_length(self) -> int | None: ...


def check_lengths(policy: HasContext, *, role: str, max_prompt_tokens: int, max_response_tokens: int) -> None:
    """The longest prompt and response must fit into the model's context."""
    longest, limit = max_prompt_tokens + max_response_tokens, policy.context_length
    if limit is not None and longest > limit:
        raise AlignmentError(
            f"the {role} reads at most {limit} tokens, but prompts of {max_prompt_tokens} and responses of "
            f"{max_response_tokens} may reach {longest}; lower prompts.max_prompt_tokens"
        )
