"""How often a policy succeeds: student only, the same tasks and draws every time (specification §8)."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from divopd.config import Config
from divopd.environments import Environment, find_entry, kind_of, tasks
from divopd.environments.pool import TIMEOUT_S, EnvironmentPool, Workers, environments_in, open_pool
from divopd.environments.words import words_in
from divopd.errors import EnvironmentFailure
from divopd.explorer import Acting, Played, PlayedTurn, Start, play_each
from divopd.models.policy import Policy
from divopd.program_rollout import programs_of
from divopd.prompts import Codec
from divopd.prompts.chat import contents, readable
from divopd.records import Answers, EvaluationRecord


@dataclass(frozen=True)
class Evaluation:
    """Rollouts in the order of the tasks. `percent` is the success rate (SR)."""

    rollouts: tuple[Played, ...]

    @property
    def percent(self) -> float:
        return 100.0 * sum(rollout.success for rollout in self.rollouts) / max(1, len(self.rollouts))


@dataclass(frozen=True)
class Exam:
    """Fixed tasks, and how they are played.

    Its environments are made at the first evaluation and kept for the next: a JVM is slow until it is warm.
    """

    environment: str
    tasks: tuple[str, ...]
    acting: Acting
    horizon: int
    settings: dict[str, Any] = field(default_factory=dict)  # of the environment
    in_flight: int = 64
    workers: Workers = "auto"
    timeout_s: float = TIMEOUT_S
    _made: list[EnvironmentPool] = field(default_factory=list, init=False, repr=False, compare=False)
    _heard: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def play(
        self,
        policy: Policy,
        *,
        progress: Callable[[int, int], None] = lambda done, of: None,
        heed: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        """Play every task once with the policy; `progress` hears how many of them are over.

        `heed` is called where an environment is waited for: it may raise what ends the run.
        """
        return self._play(self.acting, student=policy, teacher_of=None, progress=progress, heed=heed)

    def play_takeover(self, teacher: Policy, *, student: Policy, after_turns: int) -> Evaluation:
        """Play every task once; the teacher takes over from the student for good after so many turns.

        It tells whether a teacher knows its way from the states a student gets into: one that does not cannot teach.
        """
        acting = replace(self.acting, takeover_at=after_turns)
        return self._play(acting, student=student, teacher_of=lambda task: teacher, progress=lambda done, of: None)

    def _play(
        self,
        acting: Acting,
        *,
        student: Policy,
        teacher_of: Callable[[str], Policy] | None,
        progress: Callable[[int, int], None],
        heed: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        starts = self.starts()
        environments = self._environments(heed)
        over: dict[int, Played] = {}
        progress(0, len(starts))
        for played in play_each(starts, acting, student=student, teacher_of=teacher_of, environments=environments):
            over[played.start.number] = played
            progress(len(over), len(starts))
            self.hear(played)
        return Evaluation(tuple(over[start.number] for start in starts))

    def starts(self) -> list[Start]:
        """A rollout for every task, in their order."""
        return [Start(number, task, self.horizon) for number, task in enumerate(self.tasks)]

    def hear(self, played: Played) -> None:
        """A task was played: remember what it says first."""
        if played.turns and len(self._heard) < len(self.tasks):
            said = played.first.text if self.acting.program is None else contents(readable(played.first.text))
            as_read = self.acting.codec.decode(self.acting.codec.text_ids(said))
            self._heard[played.start.task] = words_in(as_read)

    def words(self) -> list[str]:
        """What its tasks say first, as the student's tokenizer has it: words, sorted; none before they were played."""
        return sorted(set().union(*self._heard.values()))

    def _environments(self, heed: Callable[[], None]) -> list[Environment]:
        """As many as play at once."""
        if not self._made:
            wanted = min(self.in_flight, find_entry(self.environment).side_by_side, len(self.tasks))
            self._made.append(
                open_pool(self.environment, self.settings, size=wanted, workers=self.workers, timeout_s=self.timeout_s)
            )
        return environments_in(self._made[0], heed=heed)

    def close(self) -> None:
        """End the processes of the environments, if there are any; the next evaluation starts them again."""
        while self._made:
            self._made.pop().close()

    def record(self, played: Evaluation, *, version: int) -> EvaluationRecord:
        """Success rate in percent, overall and by kind of task, and the mean number of turns."""
        failures = [rollout.failure for rollout in played.rollouts]
        if failures and all(failures):  # a success rate of 0 would be a claim about the policy
            raise EnvironmentFailure(f"all {len(failures)} rollouts of an evaluation broke off: {failures[-1]}")
        kinds = {task: kind_of(self.environment, task, **self.settings) for task in self.tasks}
        total = Counter(kinds[rollout.start.task] for rollout in played.rollouts)
        won = Counter(kinds[rollout.start.task] for rollout in played.rollouts if rollout.success)
        return EvaluationRecord(
            version=version,
            success_rate=played.percent,
            tasks=len(played.rollouts),
            turns=sum(len(rollout.turns) for rollout in played.rollouts) / max(1, len(played.rollouts)),
            by_kind={kind: 100.0 * won[kind] / total[kind] for kind in sorted(total)},
            answers=self._answers(played, kinds),
        )

    def _answers(self, played: Evaluation, kinds: Mapping[str, str]) -> dict[str, Answers]:
        """What the student answered, by kind of task; turns of others do not count."""
        turns: dict[str, list[PlayedTurn]] = {kind: [] for kind in sorted(set(kinds.values()))}
        for rollout in played.rollouts:
            turns[kinds[rollout.start.task]] += [turn for turn in rollout.turns if turn.actor == "student"]
        limit, stop = self.acting.max_response_tokens, self.acting.codec.stop
        return {
            kind: Answers(
                turns=len(own),
                tokens=sum(len(turn.response.ids) for turn in own),
                longest=max((len(turn.response.ids) for turn in own), default=0),
                cut=sum(len(ids) >= limit and ids[-1] != stop for ids in (turn.response.ids for turn in own)),
                without_action=sum(turn.action is None for turn in own),
                invalid_actions=sum(turn.action is not None and not turn.seen.valid for turn in own),
            )
            for kind, own in turns.items()
        }


def exam_of(config: Config, codec: Codec) -> Exam:
    """The fixed evaluation of a run."""
    environment, evaluation = config.environment, config.evaluation
    found = tasks(environment.name, environment.evaluation_split, **environment.settings)
    return Exam(
        environment=environment.name,
        tasks=tuple(found[: evaluation.tasks]),
        acting=Acting(
            style=config.prompts,
            codec=codec,
            temperature=evaluation.temperature,
            max_response_tokens=config.explorer.max_response_tokens,
            seed=config.seed,
            program=programs_of(config, codec),
        ),
        horizon=environment.horizon,
        settings=environment.settings,
        in_flight=evaluation.in_flight,
        workers=environment.workers,
        timeout_s=environment.timeout_s,
    )


def open_at_takeover(played: Evaluation, *, after_turns: int) -> Evaluation:
    """The rollouts that were not over when the teacher took over."""
    return Evaluation(tuple(one for one in played.rollouts if len(one.turns) > after_turns))


def is_evaluated(config: Config, version: int) -> bool:
    """Whether a version is one of those that the config wants evaluated."""
    return version % config.evaluation.every == 0 or version == config.learner.updates
