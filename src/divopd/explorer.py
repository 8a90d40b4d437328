"""Rollouts: a policy acts in environments, many at once, one turn of each per call of the policy (specification §6.1).

A policy that keeps its cache between calls reads only what is new. A response depends on its prompt and on (seed,
rollout number, turn), never on what runs beside it, to rounding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from divopd.environments import Environment, Observation
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

    `teacher_prompt`: what the teacher reads before this response, where it has prompts of its own. A replayed action is
    the expert's: its response is what would have been answered, without log probabilities.
    """

    actor: Actor | Literal["expert"]
    prompt: Prompt
    response: Response
    action: str | None
    seen: Observation
    teacher_prompt: Prompt | None = None


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
    active: list[_InFlight] = []
    while True:
        used = {id(rollout.environment) for rollout in active}
        free = [environment for environment in environments if id(environment) not in used]
        active += [_InFlight(start, free.pop(0), acting) for start in islice(waiting, len(free))]
        if not active:
            return
        heartbeat()
        going = [rollout for rollout in active if not rollout.over]  # an environment may have died at its reset
        for policy, rollouts in _by_policy(going, student, teacher_of):
            prompts = [rollout.prompt() for rollout in rollouts]
            responses = policy.respond(
                [prompt.ids for prompt in prompts],
                temperature=acting.temperature,
                max_tokens=acting.max_response_tokens,
                seeds=[rollout.sampling_seed for rollout in rollouts],
            )
            for rollout, prompt, response in zip(rollouts, prompts, responses, strict=True):
                rollout.act(prompt, response)
        over = [rollout.result() for rollout in active if rollout.over]
        active = [rollout for rollout in active if not rollout.over]
        yield from over


class _InFlight:
    """One rollout between two turns."""

    def __init__(self, start: Start, environment: Environment, acting: Acting) -> None:
        self.start, self.environment, self.acting = start, environment, acting
        self.turns: list[PlayedTurn] = []
        self.failure: str | None = None
        self.recovery = RecoveryState(acting.recovery) if acting.recovery else None
        self.progress = ProgressWatch(environment)
        try:
            self.seen = environment.reset(start.task)
        except EnvironmentFailure as failure:
            self._fail(failure)
        self.first = self.seen
        self.readers = {"student": Reader(acting.style, acting.codec)}
        if acting.teacher_reader is not None:
            self.readers["teacher"] = acting.teacher_reader(start.task)
        self.conversations = {who: Conversation(r.style, r.codec, self.first) for who, r in self.readers.items()}
        for action in start.replayed:
            if not self.over:
                self._replay(action)

    @property
    def over(self) -> bool:
        return self.seen.done or len(self.turns) >= self.start.depth

    @property
    def actor(self) -> Actor:
        late = self.acting.takeover_at is not None and len(self.turns) >= self.acting.takeover_at
        helped = self.recovery is not None and self.recovery.teacher_acts
        return "teacher" if late or helped else "student"

    @property
    def sampling_seed(self) -> int:
        entropy = [self.acting.seed, self.start.number, len(self.turns)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def prompt(self) -> Prompt:
        """What the model reads that acts next."""
        return self.conversations.get(self.actor, self.conversations["student"]).prompt()

    def act(self, prompt: Prompt, response: Response) -> None:
        actor, teacher = self.actor, self.conversations.get("teacher")
        reader = self.readers.get(actor, self.readers["student"])
        style, teacher_prompt = reader.style, teacher.prompt() if teacher else None
        action = style.parse(reader.codec.decode(response.ids))
        try:
            if self.recovery and action is not None:
                self.progress.expect(action, self.seen)
            self.seen = style.unparsed(self.seen) if action is None else self.environment.step(action)
            if self.recovery:
                self.recovery.record(actor, progress=self.progress.made(action, self.seen))
        except EnvironmentFailure as failure:
            self._fail(failure)
        self._add(PlayedTurn(actor, prompt, response, action, self.seen, teacher_prompt))

    def _replay(self, action: str) -> None:
        """A turn of the expert: it stands in the history as if the action had been answered, and nobody is asked."""
        ids = self.acting.codec.response_ids(self.acting.style.render(action))
        prompt = self.conversations["student"].prompt()
        try:
            self.seen = self.environment.step(action)
        except EnvironmentFailure as failure:
            self._fail(failure)
        self._add(PlayedTurn("expert", prompt, Response(ids, np.empty(0)), action, self.seen))

    def _add(self, turn: PlayedTurn) -> None:
        """A turn is over: it stands in the history of everybody who reads."""
        self.turns.append(turn)
        for conversation in self.conversations.values():
            conversation.add(turn.response.ids, turn.action, turn.seen)

    def _fail(self, failure: EnvironmentFailure) -> None:
        """An environment that died costs its rollout, which has failed."""
        self.failure = str(failure)
        self.seen = Observation(str(failure), done=True)

    def result(self) -> Played:
        return Played(self.start, self.first, tuple(self.turns), self.failure)


def _by_policy(
    active: Sequence[_InFlight], student: Policy, teacher_of: Callable[[str], Policy] | None
) -> list[tuple[Policy, list[_InFlight]]]:
    """Who acts in which rollouts: each policy responds to all of its prompts at once."""
    shares: dict[int, tuple[Policy, list[_InFlight]]] = {}
    for rollout in active:
        policy = student
        if rollout.actor == "teacher":
            assert teacher_of is not None, "a teacher is to act, and there is none"
            policy = teacher_of(rollout.start.task)
        shares.setdefault(id(policy), (policy, []))[1].append(rollout)
    return list(shares.values())


def rows_of(played: Played, *, name: str, version: int) -> Rollout | None:
    """The student turns of a rollout as rows for the teacher to score; None if it broke off or the student never acted.

    Turns in which the teacher acted, or an action was replayed, are no rows; the teacher's are kept beside them. A turn
    whose prompt was cut, for the student or for a teacher with prompts of its own, has no token that counts.
    """
    if played.failure is not None:
        return None
    by_student = [turn for turn in played.turns if turn.actor == "student"]
    prompts = tuple(turn.teacher_prompt.ids for turn in by_student if turn.teacher_prompt is not None)
    rows = tuple(
        Turn(
            rollout=name,
            turn=index,
            task=played.start.task,
            version=version,
            available_at=version,  # the store says when it really arrives
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
        if turn.actor == "student"
    )
    taught = tuple(
        TeacherTurn(index, tuple(turn.response.ids), turn.action, turn.seen.text)
        for index, turn in enumerate(played.turns)
        if turn.actor == "teacher"
    )
    return Rollout(name, rows, taught, prompts or None) if rows else None


def _is_cut(turn: PlayedTurn) -> bool:
    return turn.prompt.truncated or (turn.teacher_prompt is not None and turn.teacher_prompt.truncated)
