"""Expert data for supervised fine-tuning: rollouts in which others also act, with a label at every state.

A teacher that has only seen the expert's own states is lost on a student's. So the rollouts of `expert_rollout` go
through states that slips lead to: plausible and random actions, and earlier actions done again (which is how weak
students fail). The label stays the expert's action everywhere. `weak_rollout` labels what was done, slips included:
fine-tuning on that makes a weak student of a capable one.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from divopd.environments import Environment, Expert, Observation, find_entry, make_expert, tasks
from divopd.environments.pool import environments_in, open_pool
from divopd.errors import EnvironmentFailure, InputError
from divopd.prompts import Codec, Conversation, PromptStyle

FAILURES = 3  # of an environment in a row: then it does not work


@dataclass(frozen=True)
class Slips:
    """How often something else than the expert's action is done, as shares of the turns.

    `plausible`: an allowed action of a kind that the expert has used in this rollout or would use now. `random`: any
    allowed action. `repeat`: an action of this rollout once more, possible or not. For an expert rollout they are upper
    limits: each draws its own factor up to 1, so that smooth and hopeless ones are both seen.
    """

    plausible: float = 0.4
    random: float = 0.05
    repeat: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.plausible, self.random, self.repeat)
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise InputError(
                f"slips are plausible {self.plausible}, random {self.random}, repeat {self.repeat}; "
                "expected shares from 0 on that sum to at most 1"
            )

    def times(self, factor: float) -> "Slips":
        """The same mixture, more seldom."""
        return Slips(plausible=self.plausible * factor, random=self.random * factor, repeat=self.repeat * factor)


@dataclass(frozen=True)
class LabelledTurn:
    """What was seen, what should be answered, and what was done."""

    seen: Observation
    label: str
    done: str


@dataclass(frozen=True)
class Demonstration:
    """One whole rollout with a label at every turn, as text."""

    task: str
    turns: tuple[LabelledTurn, ...]
    success: bool


@dataclass(frozen=True, eq=False)
class Example:
    """One whole rollout as tokens: after `ids[: position]` the model should predict the target.

    `read` are the positions of what the agent reads; predicting that too is how a new model gets to know the words.
    """

    ids: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    read: np.ndarray

    @property
    def tokens(self) -> int:
        """Tokens that the model computes; the last one is only predicted."""
        return len(self.ids) - 1


Labels = Literal["expert", "weak"]


def demonstrate(environment: str, labels: Labels, *, slips: Slips, seed: int) -> Iterator[Demonstration]:
    """Rollouts of random training tasks without end; the same seed gives the same rollouts.

    Where playing is slower than learning (`recorded` in the table of environments), so many rollouts are played once in
    a process and then told again and again, in an order that depends on the seed.
    """
    recorded = find_entry(environment).recorded
    if recorded is None:
        yield from _play(environment, labels, slips=slips, seed=seed)
        return
    source = random.Random(f"{labels} {seed}")
    while True:
        told = _record(environment, labels, slips, recorded)
        yield from source.sample(told, len(told))


@lru_cache(maxsize=4)
def _record(environment: str, labels: Labels, slips: Slips, number: int) -> list[Demonstration]:
    return list(islice(_play(environment, labels, slips=slips, seed=0), number))


def _play(environment: str, labels: Labels, *, slips: Slips, seed: int) -> Iterator[Demonstration]:
    with closing(open_pool(environment, {}, size=1)) as pool:
        [played] = environments_in(pool)
        yield from _play_in(played, environment, labels, slips=slips, seed=seed)


def _play_in(
    played: Environment, environment: str, labels: Labels, *, slips: Slips, seed: int
) -> Iterator[Demonstration]:
    rollout = {"expert": expert_rollout, "weak": weak_rollout}[labels]
    expert = make_expert(environment, played)
    horizon = find_entry(environment).horizon
    names = tasks(environment, "train")
    failures, number = 0, 0
    while True:
        source = random.Random(f"{labels} {seed} {number}")
        try:
            demonstration = rollout(played, expert, source.choice(names), slips=slips, horizon=horizon, source=source)
        except EnvironmentFailure:  # the next reset starts the environment anew, and the rollout is played again
            failures += 1
            if failures == FAILURES:
                raise
            continue
        failures, number = 0, number + 1
        if demonstration.turns:  # a task may be solved before the first action
            yield demonstration


def expert_rollout(
    environment: Environment, expert: Expert, task: str, *, slips: Slips, horizon: int, source: random.Random
) -> Demonstration:
    """A rollout with slips and the expert's action as the label everywhere."""
    rare = slips.times(source.random())
    return _rollout(environment, expert, task, slips=rare, horizon=horizon, source=source)


def weak_rollout(
    environment: Environment, expert: Expert, task: str, *, slips: Slips, horizon: int, source: random.Random
) -> Demonstration:
    """A rollout of a policy that slips, labelled with what it did."""
    played = _rollout(environment, expert, task, slips=slips, horizon=horizon, source=source)
    return Demonstration(task, tuple(LabelledTurn(t.seen, t.done, t.done) for t in played.turns), played.success)


def _rollout(
    environment: Environment, expert: Expert, task: str, *, slips: Slips, horizon: int, source: random.Random
) -> Demonstration:
    observation = environment.reset(task)
    expert.reset(observation)
    turns: list[LabelledTurn] = []
    kinds: set[str] = set()
    while not observation.done and len(turns) < horizon:
        label = expert.act(observation)
        kinds.add(_kind(label))
        done = _slip(observation.allowed_actions or [], kinds, [turn.done for turn in turns], slips, source) or label
        expert.took(done)
        turns.append(LabelledTurn(observation, label, done))
        observation = environment.step(done)
    return Demonstration(task, tuple(turns), observation.success)


def _slip(
    allowed: Sequence[str], kinds: set[str], past: Sequence[str], slips: Slips, source: random.Random
) -> str | None:
    """What is done instead of the expert's action; None most of the time, and where there is nothing to choose from."""
    options: Sequence[str] = ()
    draw = source.random()
    if draw < slips.plausible:
        options = [action for action in allowed if _kind(action) in kinds]
    elif draw < slips.plausible + slips.random:
        options = allowed
    elif draw < slips.plausible + slips.random + slips.repeat:
        options = past
    return source.choice(options) if options else None


def _kind(action: str) -> str:
    """The verb of an action: "go" of "go to desk 1", "click" of "click[buy now]"."""
    return action.replace("[", " ").partition(" ")[0]


# ── to tokens ─────────────────────────────────────────────────────────────────────────────────────────────────────


def texts(demonstrations: Iterable[Demonstration], style: PromptStyle) -> Iterator[str]:
    """Everything that is read or answered in them: what a tokenizer is built from."""
    yield style.system
    for demonstration in demonstrations:
        for turn in demonstration.turns:
            yield style.describe(turn.seen)
            yield style.render(turn.label)
            yield style.render(turn.done)


def encode(demonstration: Demonstration, style: PromptStyle, codec: Codec) -> Example:
    """The rollout as one sequence. Where another action than the label was done, targets end at the first other token.

    Up to that token the label has the same context as what was done, so its loss is exact; from there on the sequence
    no longer holds the label's tokens. InputError unless the style keeps the full history: only then is a prompt the
    beginning of the next.
    """
    turns, following = demonstration.turns, [turn.seen for turn in demonstration.turns[1:]]
    answers = [
        Answered(
            label=codec.response_ids(style.render(turn.label)),
            done=codec.response_ids(style.render(turn.done)),
            action=turn.done,
            seen=seen,
        )
        for turn, seen in zip(turns, [*following, Observation("")], strict=True)
    ]
    return as_sequence(turns[0].seen, answers, style, codec)


class Answered(NamedTuple):
    """The answer that should be given and the one that was given, as tokens; the action in it; what was seen then."""

    label: list[int]  # empty: nothing is to be learned here
    done: list[int]
    action: str | None
    seen: Observation


def as_sequence(first: Observation, answers: Iterable[Answered], style: PromptStyle, codec: Codec) -> Example:
    """A rollout that began with an observation, as one sequence; see `encode`."""
    if style.history != "full":
        raise InputError(f"prompt history is {style.history!r}; supervised fine-tuning on whole rollouts needs full")
    ids: list[int] = []
    positions: list[int] = []
    targets: list[int] = []
    read: list[int] = []
    conversation = Conversation(style, codec, first)
    for label, done, action, seen in answers:
        prompt = conversation.prompt()
        if prompt.truncated:
            break  # the model will never be asked for more than this
        common = next((n for n, (a, b) in enumerate(zip(label, done, strict=False)) if a != b), len(label) - 1)
        read += range(max(1, len(ids)), len(prompt.ids))
        positions += range(len(prompt.ids), len(prompt.ids) + common + 1)
        targets += label[: common + 1]
        ids = [*prompt.ids, *done]
        conversation.add(done, action, seen)
    return Example(*(np.array(part, dtype=np.int64) for part in (ids, positions, targets, read)))
