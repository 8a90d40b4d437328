"""A teacher's own successes as demonstrations (rejection sampling): the way to a student without an expert.

The teacher acts in training tasks. Rollouts that succeed are kept whole, thoughts included; all others are thrown away.
An answer without an action, one that the environment did not understand and one that was cut off stay in the history
but are no lesson.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.bootstrap.demonstrations import Answered, Example, as_sequence
from divopd.environments import find_entry, tasks
from divopd.environments.pool import environments_in, open_pool
from divopd.errors import InputError
from divopd.explorer import Acting, Played, PlayedTurn, Start, play_each
from divopd.models.model_files import load_tokenizer, model_folder
from divopd.models.policy import Policy
from divopd.models.taught import Taught, read_taught
from divopd.pipeline.vocabularies import is_server
from divopd.prompts import Codec, PromptStyle
from divopd.prompts.vocabulary import foreign_ids
from divopd.teacher import check_vocabularies

if TYPE_CHECKING:
    from divopd.models.transformers_policy import TransformersPolicy

IN_FLIGHT = 16
TIMEOUT_S = 600.0  # that a server may be silent: a large model on a small machine thinks for long


@dataclass(frozen=True)
class Sampling:
    """How many successes are wanted, and after how many rollouts to give up."""

    wanted: int = 128
    attempts: int = 1024

    def __post_init__(self) -> None:
        if self.wanted < 1 or self.attempts < 1:
            raise InputError(
                f"got {self.wanted} demonstrations wanted of {self.attempts} rollouts; expected 1 or more of both"
            )


@dataclass(frozen=True)
class Collected:
    """The rollouts of a teacher that succeeded, of how many that it played."""

    rollouts: tuple[Played, ...]
    played: int

    @property
    def percent(self) -> float:
        return 100.0 * len(self.rollouts) / max(1, self.played)


def collect_successes(
    teacher: Policy,
    environment: str,
    acting: Acting,
    sampling: Sampling,
    *,
    report: Callable[[Collected], None] = lambda collected: None,
) -> Collected:
    """Let the teacher play training tasks, in an order by the seed of `acting`, until enough rollouts have succeeded.

    No new rollout starts then, but those under way are played to their end: stopping them would keep short ones only.
    So there may be some more than wanted. None at all is an InputError.
    """
    entry = find_entry(environment)
    listed = tasks(environment, "train")
    if not listed:
        raise InputError(f"{environment}: the split train has no tasks; expected some to play")
    order = random.Random(f"rejection {acting.seed}").sample(listed, len(listed))
    kept: list[Played] = []
    played, failure = 0, None

    def starts() -> Iterator[Start]:
        for number, task in islice(enumerate(cycle(order)), sampling.attempts):
            if len(kept) >= sampling.wanted:
                return
            yield Start(number, task, entry.horizon)

    number = min(IN_FLIGHT, entry.side_by_side, sampling.attempts)
    pool = open_pool(environment, {}, size=number)
    environments = environments_in(pool)
    try:
        for rollout in play_each(starts(), acting, student=teacher, environments=environments):
            played, failure = played + 1, rollout.failure or failure
            if rollout.success:
                kept.append(rollout)
            report(Collected(tuple(kept), played))
    finally:
        for one in environments:
            getattr(one, "close", lambda: None)()
        pool.close()
    if not kept:
        why = f" (an environment broke off: {failure})" if failure else ""
        raise InputError(
            f"none of the teacher's {played} rollouts in {environment} succeeded{why}; expected some to learn from: "
            "watch it with `divopd play ENV --policy MODEL`, or give it more --attempts"
        )
    return Collected(tuple(sorted(kept, key=lambda rollout: rollout.start.number)), played)


def lesson_of(rollout: Played, style: PromptStyle, codec: Codec, *, teacher_stop: int) -> Example:
    """A teacher's rollout as the student reads it, in its own tokenizer and chat template.

    `teacher_stop` ends the teacher's answers; the student learns to end its own as its template does.
    """
    answers = [_answered(turn, codec, teacher_stop) for turn in rollout.turns]
    return as_sequence(rollout.first, answers, style, codec)


def _answered(turn: PlayedTurn, codec: Codec, teacher_stop: int) -> Answered:
    ids = turn.response.ids
    ended = bool(ids) and ids[-1] == teacher_stop
    done = [*codec.adopted(ids[:-1]), codec.stop] if ended else codec.adopted(ids)
    learned = ended and turn.action is not None and turn.seen.valid
    return Answered(done if learned else [], done, turn.action, turn.seen)


def told_again(examples: Sequence[Example], *, seed: int) -> Iterator[Example]:
    """The same examples without end, each time round in another order."""
    source = random.Random(f"told again {seed}")
    while True:
        yield from source.sample(examples, len(examples))


# ── the teacher ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Teacher:
    """Who demonstrates. A server shows no tokenizer unless its model's name is a folder that has one."""

    name: str
    policy: Policy
    tokenizer: Any | None
    context: int | None
    taught: Taught | None


def load_teacher(name: str, *, served_as: str | None = None) -> Teacher:
    """A model folder, `embedded:NAME`, or the address of a server that knows its model as `served_as`."""
    from divopd.models.openai_policy import OpenAIPolicy
    from divopd.models.transformers_policy import TransformersPolicy

    if not is_server(name):
        folder = model_folder(name)
        policy = TransformersPolicy.load(folder)
        return Teacher(name, policy, policy.tokenizer, policy.context_length, read_taught(folder))
    server = OpenAIPolicy(name, model=served_as, timeout_s=TIMEOUT_S)
    folder = Path(served_as or "")
    local = served_as is not None and (folder / "tokenizer_config.json").is_file()
    tokenizer, taught = (load_tokenizer(folder), read_taught(folder)) if local else (None, None)
    return Teacher(name, server, tokenizer, server.context_length, taught)


def teachable(teacher: Teacher, student: Any) -> Codec:
    """How the teacher reads prompts, if its tokens are those of the student's tokenizer; else an AlignmentError."""
    if teacher.tokenizer is None:
        return Codec(student)
    check_vocabularies(student, teacher.tokenizer)
    return Codec(teacher.tokenizer)


def lessons_of(
    collected: Collected, student: "TransformersPolicy", teacher: Teacher, style: PromptStyle
) -> list[Example]:
    """What the student learns of a teacher's successes; rollouts without a lesson are left out."""
    theirs = teachable(teacher, student.tokenizer)
    spelling = {} if teacher.tokenizer is None else foreign_ids(teacher.tokenizer, student.tokenizer)
    codec = Codec(student.tokenizer, spelling=spelling)
    examples = [lesson_of(rollout, style, codec, teacher_stop=theirs.stop) for rollout in collected.rollouts]
    for example in examples:
        student.refuse_foreign_ids(example.ids)
    found = [example for example in examples if len(example.targets)]
    if not found:
        raise InputError(
            f"{teacher.name}: no answer of its {len(examples)} successful rollouts ended within --response-tokens or "
            "fits into a prompt; expected some to learn from"
        )
    return found
