"""Rollouts: what happens in one, whoever asks the models and environments for it (specification §6.1).

`live` is one rollout. It waits for nobody: it yields what it wants next, a call of its environment or a response of a
model, and is sent the answer. `play_each` lets many of them live in lock-step, one turn of each per call of the policy;
player.py lets each go at its own pace. A response depends on its prompt and on (seed, rollout number, turn), never on
what runs beside it, to rounding.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from divopd.environments import Environment, Observation
from divopd.environments.environment import Call, Returned, submit
from divopd.errors import EnvironmentFailure
from divopd.models.policy import Policy, Response
from divopd.prompts import Codec, Conversation, Prompt, PromptStyle, Reader
from divopd.recovery import ProgressWatch, Recovery, RecoveryState
from divopd.turns import Rollout, TeacherTurn, Turn

Actor = Literal["student", "teacher"]


@dataclass(frozen=True)
class Acting:
    """What is the same for all rollouts that are played together."""

    style: PromptStyle
    codec: Codec
    temperature: float
    max_response_tokens: int
    seed: int
    recovery: Recovery | None = None  # None: the teacher never helps
    takeover_at: int | None = None  # the teacher acts from this turn on
    teacher_reader: Callable[[str], Reader] | None = None  # of a task; None: teachers read the student's prompts
    program: "Asking | None" = None  # who makes rollouts of agent programs, which ask themselves (program_rollout.py)


@dataclass(frozen=True)
class Start:
    """A rollout to be played: `depth` is the number of turns after which it is cut.

    It begins with the `replayed` actions, which count among its turns; then the student acts.
    """

    number: int
    task: str
    depth: int
    replayed: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PlayedTurn:
    """One turn as it happened: who acted on which prompt, what was answered, and what was seen then.

    `version` is that of the policy that answered, where somebody said it (`explorer.versions: turn`).
    `teacher_prompt`: what the teacher reads before this response, where it has prompts of its own. A replayed action is
    the expert's: its response is what would have been answered, without log probabilities. A turn whose answer a
    program has not heard is not `delivered`.
    """

    actor: Actor | Literal["expert"]
    prompt: Prompt
    response: Response
    action: str | None
    seen: Observation
    teacher_prompt: Prompt | None = None
    version: int | None = None
    delivered: bool = True


@dataclass(frozen=True, eq=False)
class Played:
    """One rollout that is over. `failure` says why it broke off, if the environment died."""

    start: Start
    first: Observation
    turns: tuple[PlayedTurn, ...]
    failure: str | None = None

    @property
    def success(self) -> bool:
        return bool(self.turns) and self.turns[-1].seen.success

    @property
    def reward(self) -> float:
        return sum(turn.seen.reward for turn in self.turns)

    @property
    def generated_tokens(self) -> int:
        """By student and teacher; a replayed action was not generated."""
        return sum(len(turn.response.ids) for turn in self.turns if turn.actor != "expert")


def play(
    starts: Sequence[Start],
    acting: Acting,
    *,
    student: Policy,
    teacher_of: Callable[[str], Policy] | None = None,
    environments: Sequence[Environment],
) -> list[Played]:
    """Play every start to its end; results in the order of the starts."""
    rollouts = play_each(starts, acting, student=student, teacher_of=teacher_of, environments=environments)
    over = {played.start.number: played for played in rollouts}
    return [over[start.number] for start in starts]


def play_each(
    starts: Iterable[Start],
    acting: Acting,
    *,
    student: Policy,
    teacher_of: Callable[[str], Policy] | None = None,
    environments: Sequence[Environment],
    heartbeat: Callable[[], None] = lambda: None,
) -> Iterator[Played]:
    """Play as many starts at once as there are environments; each rollout comes out as soon as it is over.

    A start is taken when an environment is free for it. `heartbeat` is called once a turn. The teacher of a rollout's
    task acts only where `acting` says so.
    """
    waiting = iter(starts)
    active: list[InLockStep] = []
    while True:
        used = {id(rollout.environment) for rollout in active}
        free = [environment for environment in environments if id(environment) not in used]
        begun = [InLockStep(live(start, acting), start, free.pop(0)) for start in islice(waiting, len(free))]
        go_on((rollout, None) for rollout in begun)
        active += begun
        if not active:
            return
        heartbeat()
        going = [rollout for rollout in active if rollout.ask is not None]  # an environment may have died at its reset
        answer_together(going, acting, student=student, teacher_of=teacher_of)
        over = [rollout.played for rollout in active if rollout.played is not None]
        active = [rollout for rollout in active if rollout.played is None]
        yield from over


def answer_together(
    rollouts: Sequence["InLockStep"],
    acting: Acting,
    *,
    student: Policy,
    teacher_of: Callable[[str], Policy] | None,
    version: int | None = None,
) -> list[Response]:
    """One turn of each of these rollouts, which all have a question; `version` is the student's, if told."""
    made: dict[int, Answered] = {}
    for policy, share in _by_policy(rollouts, student, teacher_of):
        asks = [rollout.ask for rollout in share if rollout.ask is not None]
        responses = policy.respond(
            [ask.prompt.ids for ask in asks],
            temperature=acting.temperature,
            max_tokens=acting.max_response_tokens,
            seeds=[ask.seed for ask in asks],
        )
        made |= {id(one): Answered(response, version) for one, response in zip(share, responses, strict=True)}
    go_on((rollout, made[id(rollout)]) for rollout in rollouts)
    return [made[id(rollout)].response for rollout in rollouts]


def go_on(rollouts: "Iterable[tuple[InLockStep, Answered | None]]") -> None:
    """Each lives on to its next question or to its end, with what a model has answered (None: it begins).

    Their environments are asked first and waited for then, in the order of the rollouts: whichever is done first, what
    comes of them is the same.
    """
    calls = [(rollout, call) for rollout, given in rollouts if (call := rollout.hear(given)) is not None]
    while calls:
        waits = [(rollout, submit(rollout.environment, call)) for rollout, call in calls]
        calls = [(rollout, call) for rollout, wait in waits if (call := rollout.hear(_returned(wait))) is not None]


def _returned(wait: Callable[[], Returned]) -> Returned | EnvironmentFailure:
    try:
        return wait()
    except EnvironmentFailure as failure:
        return failure


class InLockStep:
    """One rollout with its environment. Between two turns it has a question to a model, or it is over."""

    def __init__(self, life: "Life", start: Start, environment: Environment) -> None:
        self._life, self.start, self.environment = life, start, environment
        self.ask: Ask | None = None
        self.played: Played | None = None

    def hear(self, given: "Answered | Returned | EnvironmentFailure") -> Call | None:
        """Live on with what was wanted; what it wants of its environment next, if that is what it wants."""
        wish = onward(self._life, given)
        self.ask = wish if isinstance(wish, Ask) else None
        self.played = wish if isinstance(wish, Played) else None
        return wish if isinstance(wish, Call) else None


class Ask(NamedTuple):
    """What a rollout wants of a model: a response to this prompt, drawn with this seed."""

    actor: Actor
    prompt: Prompt
    seed: int


class Answered(NamedTuple):
    """A response, and the version of the policy that gave it, if weights may change within a rollout."""

    response: Response
    version: int | None = None


Life = Generator[Call | Ask, Any, Played]


def onward(life: Life, given: object) -> Call | Ask | Played:
    """Send a rollout what it wanted, or the failure of its environment (None: let it begin); what it wants next."""
    try:
        return life.throw(given) if isinstance(given, EnvironmentFailure) else life.send(given)
    except StopIteration as end:
        return end.value


def live(start: Start, acting: Acting) -> Life:
    """One rollout from reset to end. An environment that dies costs its rollout, which has failed."""
    rollout = _InFlight(start, acting) if acting.program is None else acting.program.rollout(start, acting)
    try:
        yield from rollout.begin()
        while not rollout.over:
            yield from rollout.turn()
    except EnvironmentFailure as failure:
        rollout.fail(failure)
    return rollout.result()


class InFlight(Protocol):
    """A rollout under way: `begin`, then a `turn` after the other until it is `over`."""

    @property
    def over(self) -> bool: ...

    def begin(self) -> Generator[Call | Ask, Any, None]: ...

    def turn(self) -> Generator[Call | Ask, Any, None]: ...

    def fail(self, failure: EnvironmentFailure) -> None: ...

    def result(self) -> Played: ...


class Asking(Protocol):
    """Makes the rollouts of programs that ask the student themselves."""

    def rollout(self, start: Start, acting: Acting) -> InFlight: ...


class _InFlight:
    """What is known of a rollout so far."""

    def __init__(self, start: Start, acting: Acting) -> None:
        self.start, self.acting = start, acting
        self.turns: list[PlayedTurn] = []
        self.first: Observation | None = None
        self.failure: str | None = None
        self.unfinished: Callable[[Observation], PlayedTurn] | None = None  # the turn that the environment is at
        self.recovery = RecoveryState(acting.recovery) if acting.recovery else None
        self.progress = ProgressWatch()
        self.readers = {"student": Reader(acting.style, acting.codec)}
        if acting.teacher_reader is not None:
            self.readers["teacher"] = acting.teacher_reader(start.task)

    def begin(self) -> Generator[Call | Ask, Any, None]:
        """Reset, then the actions of the expert that are replayed."""
        self.first = self.seen = yield Call("reset", self.start.task)
        self.conversations = {who: Conversation(r.style, r.codec, self.seen) for who, r in self.readers.items()}
        for action in self.start.replayed:
            if not self.over:
                yield from self._replay(action)

    def turn(self) -> Generator[Call | Ask, Any, None]:
        """Whose turn it is answers, and the environment says what came of it."""
        actor, teacher = self.actor, self.conversations.get("teacher")
        prompt = self.conversations.get(actor, self.conversations["student"]).prompt()
        response, version = yield Ask(actor, prompt, self._sampling_seed)
        reader = self.readers.get(actor, self.readers["student"])
        style, teacher_prompt = reader.style, teacher.prompt() if teacher else None
        action = style.parse(reader.codec.decode(response.ids))

        def finished(seen: Observation) -> PlayedTurn:
            return PlayedTurn(actor, prompt, response, action, seen, teacher_prompt, version)

        self.unfinished = finished
        if self.recovery and action is not None:
            yield from self.progress.expect(action, self.seen)
        self.seen = style.unparsed(self.seen) if action is None else (yield Call("step", action))
        if self.recovery:
            self.recovery.record(actor, progress=(yield from self.progress.made(action, self.seen)))
        self._add(finished(self.seen))

    def _replay(self, action: str) -> Generator[Call | Ask, Any, None]:
        """A turn of the expert: it stands in the history as if the action had been answered, and nobody is asked."""
        ids = self.acting.codec.response_ids(self.acting.style.render(action))
        prompt = self.conversations["student"].prompt()

        def finished(seen: Observation) -> PlayedTurn:
            return PlayedTurn("expert", prompt, Response(ids, np.empty(0)), action, seen)

        self.unfinished = finished
        self.seen = yield Call("step", action)
        self._add(finished(self.seen))

    @property
    def over(self) -> bool:
        return self.seen.done or len(self.turns) >= self.start.depth

    @property
    def actor(self) -> Actor:
        late = self.acting.takeover_at is not None and len(self.turns) >= self.acting.takeover_at
        helped = self.recovery is not None and self.recovery.teacher_acts
        return "teacher" if late or helped else "student"

    @property
    def _sampling_seed(self) -> int:
        entropy = [self.acting.seed, self.start.number, len(self.turns)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _add(self, turn: PlayedTurn) -> None:
        """A turn is over: it stands in the history of everybody who reads."""
        self.turns.append(turn)
        self.unfinished = None
        for conversation in self.conversations.values():
            conversation.add(turn.response.ids, turn.action, turn.seen)

    def fail(self, failure: EnvironmentFailure) -> None:
        """The environment died; the turn that it was at is the last one."""
        self.failure = str(failure)
        self.seen = Observation(self.failure, done=True)
        if self.unfinished is not None:
            self.turns.append(self.unfinished(self.seen))

    def result(self) -> Played:
        return Played(self.start, self.first or self.seen, tuple(self.turns), self.failure)


def _by_policy(
    active: Sequence[InLockStep], student: Policy, teacher_of: Callable[[str], Policy] | None
) -> list[tuple[Policy, list[InLockStep]]]:
    """Who acts in which rollouts: each policy responds to all of its prompts at once."""
    shares: dict[int, tuple[Policy, list[InLockStep]]] = {}
    for rollout in active:
        policy = student
        if rollout.ask is not None and rollout.ask.actor == "teacher":
            assert teacher_of is not None, "a teacher is to act, and there is none"
            policy = teacher_of(rollout.start.task)
        shares.setdefault(id(policy), (policy, []))[1].append(rollout)
    return list(shares.values())


def rows_of(played: Played, *, name: str, version: int) -> Rollout | None:
    """The student turns of a rollout as rows for the teacher to score; None if it broke off or the student never acted.

    `version` is that of the rollout's start: of every turn that has none of its own.

    Turns in which the teacher acted, or an action was replayed, are no rows; the teacher's are kept beside them. Nor is
    a turn whose answer the program that asked has not heard. A turn
    whose prompt was cut, for the student or for a teacher with prompts of its own, has no token that counts.
    """
    if played.failure is not None:
        return None
    by_student = [turn for turn in played.turns if _is_row(turn)]
    prompts = tuple(turn.teacher_prompt.ids for turn in by_student if turn.teacher_prompt is not None)
    rows = tuple(
        Turn(
            rollout=name,
            turn=index,
            task=played.start.task,
            version=version if turn.version is None else turn.version,
            available_at=version if turn.version is None else turn.version,  # the store says when it really arrives
            prompt_ids=list(turn.prompt.ids),
            prompt_truncated=_is_cut(turn),
            response_ids=list(turn.response.ids),
            student_logprobs=turn.response.logprobs.tolist(),
            action_mask=[0 if _is_cut(turn) else 1] * len(turn.response.ids),
            reward=played.reward,
            success=played.success,
            rollout_turns=len(played.turns),
        )
        for index, turn in enumerate(played.turns)
        if _is_row(turn)
    )
    taught = tuple(
        TeacherTurn(index, tuple(turn.response.ids), turn.action, turn.seen.text)
        for index, turn in enumerate(played.turns)
        if turn.actor == "teacher"
    )
    return Rollout(name, rows, taught, prompts or None) if rows else None


def _is_row(turn: PlayedTurn) -> bool:
    return turn.actor == "student" and turn.delivered


def _is_cut(turn: PlayedTurn) -> bool:
    return turn.prompt.truncated or (turn.teacher_prompt is not None and turn.teacher_prompt.truncated)
