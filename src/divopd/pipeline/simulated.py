"""The virtual world: one process, real models, environments and scores, virtual time (specification §7).

When a rollout becomes visible and how long an update takes follows from the costs in the config, so the same config
gives the same batches, to the bit, on any machine. Rollouts that start close together are generated together: none of
them can end before the shortest rollout would, so nothing that happens meanwhile could change what they are. Where
versions go by turn, turns that begin close together are: none of them can see the end of an update that has not begun.

A resume starts from the newest checkpoint and lives through the same virtual time again: rollouts that were put before
the crash are put again (which changes nothing), journalled batches are served again, and then it goes on.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from divopd.composers import Composer
from divopd.config import Config
from divopd.curricula import outcome_of
from divopd.environments import Environment
from divopd.environments.pool import environments_in
from divopd.evaluation import exam_of, is_evaluated
from divopd.explorer import InLockStep, Played, Start, answer_together, go_on, live, rows_of
from divopd.first_evaluation import evaluate_version
from divopd.learner import Learner
from divopd.learner.torch_learner import TorchLearner
from divopd.models.engine import Interruptible
from divopd.models.policy import Policy
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.broken import BROKE, note_broken, retelling, sentence_of
from divopd.pipeline.kept_weights import keep_weights
from divopd.pipeline.models import load_student
from divopd.pipeline.preflight import load_models
from divopd.pipeline.rollouts import TrainingRollouts, has_room, is_synced
from divopd.pipeline.slots import Slot, seconds_of, slot_from_json, slot_to_json, spread
from divopd.pipeline.training import Wishes, train
from divopd.pipeline.turn_by_turn import Begun
from divopd.pipeline.vocabularies import Vocabularies
from divopd.pipeline.world import Waited, refuse_to_starve
from divopd.records import Clock, Observer
from divopd.run.checkpoints import publish_weights, read_weights
from divopd.run.doing import Doing, forget_now, silent, write_now
from divopd.run.durable_folder import numbered_path
from divopd.run.folder import RunFolder
from divopd.store import JournaledBatch, Store
from divopd.teacher import Away, Teachers
from divopd.turns import Rollout


def run_simulated(config: Config, folder: Path, *, observer: Observer, wishes: Wishes) -> None:
    """Train a run of the virtual clock to its end, or go on with it."""
    torch.set_num_threads(config.threads)
    models = load_models(config)
    learner, run = TorchLearner(models.student, config.learner), RunFolder(folder)
    with Store.open(folder) as store:
        _tell_records(store, observer)
        world = SimulatedWorld(
            config,
            store,
            run,
            student=models.student,
            actor=load_student(config),  # explorers keep their weights while the learner changes its own
            teachers=models.teachers,
            observer=observer,
            doing=Doing(lambda now: write_now(run.now, "run", now)),
        )
        try:
            train(config, learner=learner, ledger=store, world=world, run=run, observer=observer, wishes=wishes)
        finally:
            world.close()
            forget_now(run.now)


def _tell_records(store: Store, observer: Observer) -> None:
    """What is recorded already: the process that did it may have died before it told anybody."""
    for update in store.update_records().values():
        observer.updated(update)
    for evaluation in store.evaluations().values():
        observer.evaluated(evaluation)


class Made(NamedTuple):
    """A rollout that was played and scored (None: the student never acted), and its virtual seconds without jitter."""

    rollout: Rollout | None
    generated_tokens: int
    seconds: float


class SimulatedWorld:
    """Explorers, teachers and evaluation in virtual time.

    `student` is the policy that the learner trains, `actor` the one that explores.
    """

    clock: Clock = "virtual"

    def __init__(
        self,
        config: Config,
        store: Store,
        run: RunFolder,
        *,
        student: TransformersPolicy,
        actor: TransformersPolicy,
        teachers: Teachers,
        observer: Observer,
        doing: Callable[..., None] = silent,
    ) -> None:
        self.config, self.store, self.run, self.observer = config, store, run, observer
        self.student, self.actor, self.doing = student, actor, doing
        # real time passes while a teacher is away, virtual time does not
        self.teachers = teachers.retrying(
            limit_s=config.teacher.away_limit_s,
            tells=self._note_absence,
            ends=self._note_return,
            waits=lambda: self.heed(),
        )
        vocabularies = Vocabularies(config)
        codec, reader = vocabularies.student_codec(), vocabularies.teacher_reader()
        self.forbidden = vocabularies.forbidden
        self.rollouts = TrainingRollouts(config, codec, teacher_reader=reader, calls=store)
        self.exam = exam_of(config, codec)
        self.heed: Callable[[], None] = lambda: None
        self.elapsed_s = self.learner_s = 0.0
        self.version = 0  # of the learner
        self.acting_version = 0  # of the explorers
        self.started = 0  # rollouts
        self.turns_put = 0
        self.rollouts_put = 0
        events = (event for _, kind, event in store.events() if kind == BROKE)
        self.broken = {event["number"]: event for event in events}  # rollouts that broke off: none is played again
        self.slots = [Slot() for _ in range(config.explorer.rollouts_in_flight)]
        self.by_turn = config.explorer.versions == "turn"
        self.lives: dict[int, InLockStep] = {}  # of the slots whose rollouts have begun

    def _note_absence(self, away: Away) -> None:
        if not away.seconds:
            self.store.note("teacher_away", asdict(away) | {"sentence": away.sentence, "update": self.version})
        self.observer.told(away.sentence)
        self.doing("teacher", f"waiting: {away.sentence}")

    def _note_return(self, away: Away) -> None:
        back = {"who": away.who, "error": away.error, "away_s": away.seconds, "update": self.version}
        self.store.note("teacher_back", back)

    def close(self) -> None:
        """End the processes of the environments, if there are any."""
        self.rollouts.close()
        self.exam.close()

    # ── what the loop asks for ────────────────────────────────────────────────────────────────────────────────────

    def publish(self, version: int, learner: Learner) -> None:
        """The explorers have the new weights at once, every `sync_interval` updates; files are for audits only."""
        self.version = version
        if is_synced(self.config, version):
            self.actor.fill_weights(learner.weights(), source=f"version {version}")
            self.acting_version = version
        elif self.by_turn:  # what was read goes all the same: after a resume it would be gone, and rounding another
            self.actor.fill_weights(self.actor.weights(), source=f"version {self.acting_version}")
        keep_weights(self.config, self.run, version, learner, evaluated=self.store.evaluations)

    def evaluate(self, version: int, learner: Learner) -> None:
        """Play the fixed evaluation tasks with the learner's weights, once for every version that is due."""
        if not is_evaluated(self.config, version) or version in self.store.evaluations():
            return
        policy = Interruptible(self.student, self.heed)
        record = evaluate_version(
            self.config,
            self.exam,
            policy,
            version=version,
            forbidden=self.forbidden,
            recalled=self.observer.told,
            heed=self.heed,
            progress=lambda done, of: self.doing("evaluator", f"evaluating version {version}", done, of),
        )
        if (words := self.exam.words()) and not any(kind == "evaluation_words" for _, kind, _ in self.store.events()):
            self.store.note("evaluation_words", {"words": words})
        if self.store.record_evaluation(record):
            self.observer.evaluated(record)

    def wait(self, composer: Composer, *, update: int) -> Waited:
        """Let time pass until the pool holds a whole batch, or to the moment at which it was composed before."""
        began, size = self.elapsed_s, self.config.composer.batch_size
        limit_s = self.config.learner.max_wait_s
        limit = began + limit_s
        starved, rollouts = 0.0, self.rollouts_put
        while self.rollouts_put < self.store.rollouts(available_by=update):
            # a resume comes to the moment up to which the run had got
            rows, before = self.store.past_rows(composer, update=update, arrived=self.turns_put), self.elapsed_s
            self._next_arrival()
            starved += 0.0 if rows else self.elapsed_s - before
        if update < self.store.updates:
            if len(self.store.journal(update).selected) < size:  # it was the limit that ended the wait
                self._explore(until=max(limit, self.elapsed_s), waiting=True)
            return Waited(self.elapsed_s - began, starved)
        while (rows := self.store.rows(composer, update=update)) < size:
            self._wake()
            if self._next_end() >= limit and rows:
                self._explore(until=max(limit, self.elapsed_s), waiting=True)
                break
            before = self.elapsed_s
            self._next_arrival(by=limit if rows else inf)
            starved += 0.0 if rows else self.elapsed_s - before
            if not rows and not self.store.rows(composer, update=update):  # nor of what has just arrived
                arrived, newest = self.store.outcomes(after=rollouts), self.acting_version
                refuse_to_starve(arrived, newest=newest, waited_s=starved, limit_s=limit_s, batch_size=size)
        return Waited(self.elapsed_s - began, starved)

    @contextmanager
    def updating(self, batch: JournaledBatch) -> Generator[None]:
        """Explorers live through the time that the update takes by the stated costs; then it is made."""
        costs, tokens = self.config.costs, sum(turn.tokens for turn in batch.turns)
        began = self.elapsed_s
        self._explore(until=began + costs.update_s + tokens * costs.trained_token_s)
        self.learner_s += self.elapsed_s - began
        self.heed()
        self.doing("learner", "training update", batch.update, self.config.learner.updates)
        yield

    def state(self) -> dict[str, Any]:
        return {
            "elapsed_s": self.elapsed_s,
            "learner_s": self.learner_s,
            "version": self.version,
            "acting_version": self.acting_version,
            "started": self.started,
            "turns_put": self.turns_put,
            "rollouts_put": self.rollouts_put,
            "slots": list(self.slots),
        }

    def write_state(self, state: dict[str, Any]) -> dict[str, Any]:
        if self._acts_behind(state):
            publish_weights(self.run.acting_weights, state["acting_version"], self.actor.weights(), keep=2)
        return state | {"slots": [slot_to_json(slot) for slot in state["slots"]]}

    def restore(self, state: dict[str, Any], *, version: int, learner: Learner) -> None:
        for name in ("elapsed_s", "learner_s", "version", "acting_version", "started", "turns_put", "rollouts_put"):
            setattr(self, name, state[name])
        self.slots = [slot_from_json(slot) for slot in state["slots"]]
        if self._acts_behind(state):
            weights = read_weights(numbered_path(self.run.acting_weights, self.acting_version))
            self.actor.fill_weights(weights, source=f"version {self.acting_version}")
        else:
            self.actor.fill_weights(learner.weights(), source=f"version {version}")
        for number, slot in enumerate(self.slots):
            if slot.begun is not None:
                start, version = slot.begun.start, slot.begun.version
                self.lives[number] = slot.begun.live_again(self.rollouts.acting(version), self._room(number, start))
        # what arrived after the checkpoint will arrive again
        self.rollouts.hear(lambda last: [o for o in self.store.outcomes(after=last) if o.number <= self.rollouts_put])

    def _acts_behind(self, state: dict[str, Any]) -> bool:
        """Whether explorers still act, and with other weights than the learner's."""
        return state["acting_version"] < state["version"] < self.config.learner.updates

    # ── explorers in virtual time ─────────────────────────────────────────────────────────────────────────────────

    def _next_end(self) -> float:
        return min(slot.ends_at for slot in self.slots)

    def _next_arrival(self, *, by: float = inf) -> None:
        """Go on to the next arrival, for which the learner waits; if none comes before `by`, to what happens last."""
        before = self.rollouts_put
        while self.rollouts_put == before:
            self._wake()
            if self._next_end() >= by:
                return
            self._explore(until=self._next_end(), inclusive=True, waiting=True)

    def _wake(self) -> None:
        """Slots that admission control holds back may start now."""
        self.slots = [Slot(self.elapsed_s) if slot.ends_at == inf else slot for slot in self.slots]

    def _explore(self, *, until: float, inclusive: bool = False, waiting: bool = False) -> None:
        """Let virtual time pass: rollouts that end enter the queue in order, and their slots start anew.

        Admission control holds nobody back while the learner itself is `waiting`.
        """
        if waiting or self._has_room():
            self._wake()
        if self.by_turn:
            self._explore_turns(until=until, inclusive=inclusive, waiting=waiting)
        while not self.by_turn:
            due = [n for n, s in enumerate(self.slots) if s.ends_at < until or (inclusive and s.ends_at == until)]
            if not due:
                break
            due.sort(key=lambda number: self.slots[number].ends_at)
            together = self.slots[due[0]].ends_at + self.config.costs.rollout_s * (1 - self.config.costs.jitter)
            starting: list[tuple[int, float]] = []
            for number in due:
                moment = self.slots[number].ends_at
                if moment >= together:
                    break
                self._arrive(number)
                if waiting or self._has_room():
                    starting.append((number, moment))
            self._start(starting)
        if until != inf:
            self.elapsed_s = max(self.elapsed_s, until)

    def _explore_turns(self, *, until: float, inclusive: bool, waiting: bool) -> None:
        """The same where versions go by turn: what happens in a slot is a turn, an arrival or a beginning."""
        while (moment := self._next_end()) < until or (inclusive and moment == until):
            # explorers have these weights until an update has ended that begins now or later
            known = moment + self.config.costs.update_s if waiting else until
            turning = [n for n, s in enumerate(self.slots) if s.begun and (s.ends_at < known or s.ends_at == moment)]
            if turning:
                self._play_turns(turning)
                continue
            number = next(n for n, slot in enumerate(self.slots) if slot.ends_at == moment)
            self._arrive(number)
            if waiting or self._has_room():
                self._begin(number, moment)

    def _begin(self, number: int, moment: float) -> None:
        """A rollout begins in a slot: its environment is reset, and its first turn begins at once."""
        start = self.rollouts.start(self.started, version=self.acting_version)
        self.started += 1
        acting = self.rollouts.acting(self.acting_version)
        life = self.lives[number] = InLockStep(live(start, acting), start, self._room(number, start))
        go_on([(life, None)])
        self.slots[number] = Slot(moment, begun=Begun(start, self.acting_version, moment))
        self._end_or_go_on([number])

    @cached_property
    def _environments(self) -> list[Environment]:
        return environments_in(self.rollouts.pool, heed=lambda: self.heed())

    def _room(self, number: int, start: Start) -> Environment:
        """The environment of a slot; a rollout that broke off before a resume is only told again."""
        return retelling([self._environments[number]], [start], self.broken)[0]

    def _play_turns(self, numbers: list[int]) -> None:
        """The next turn in each of these slots, with the weights that explorers have now."""
        self.heed()
        version = self.acting_version
        self.doing("explorer", f"playing rollouts with version {version}", self.started)
        lives = [self.lives[number] for number in numbers]
        asks = [life.ask for life in lives]
        responses = answer_together(
            lives,
            self.rollouts.acting(version),
            student=self.actor,
            teacher_of=cast(Callable[[str], Policy], self.teachers.of),
            version=version,
        )
        for number, ask, response in zip(numbers, asks, responses, strict=True):
            slot = self.slots[number]
            assert slot.begun is not None
            assert ask is not None
            self.slots[number] = replace(slot, begun=slot.begun.after(ask, response, version=version))
        self._end_or_go_on(numbers)

    def _end_or_go_on(self, numbers: list[int]) -> None:
        """Say when the next turn of these slots begins; score the rollouts that are over, and say when they arrive."""
        over: dict[int, tuple[Begun, Played]] = {}
        for number in numbers:
            begun, played = self.slots[number].begun, self.lives[number].played
            assert begun is not None
            if played is not None:
                over[number] = begun, played
                del self.lives[number]
                self._note_end(played)
                continue
            moment = begun.began_at + begun.next_turn_s(self.config.costs) * self._stretch(begun.start.number)
            self.slots[number] = Slot(moment, begun=begun)
        named = [rows_of(one, name=f"r{one.start.number:06d}", version=begun.version) for begun, one in over.values()]
        made = self._scored(named, [played for _, played in over.values()])
        for (number, (begun, _)), one in zip(over.items(), made, strict=True):
            moment = begun.began_at + one.seconds * self._stretch(begun.start.number)
            self.slots[number] = Slot(moment, one.rollout, one.generated_tokens)

    def _stretch(self, number: int) -> float:
        """By how much a rollout takes longer or shorter than its costs say."""
        return 1 + self.config.costs.jitter * spread(self.config.seed, number)

    def _arrive(self, number: int) -> None:
        """What a slot holds enters the queue."""
        slot, self.slots[number] = self.slots[number], Slot(inf)
        rollout = slot.rollout
        if rollout is None:
            return
        self.store.put(rollout, generated_tokens=slot.generated_tokens)
        self.turns_put += len(rollout.turns)
        self.rollouts_put += 1
        self.rollouts.hear(lambda last: [outcome_of(rollout, number=self.rollouts_put)])

    def _has_room(self) -> bool:
        bound = self.config.explorer.max_backlog
        if bound is None:
            return True
        read = self.store.journal(self.version - 1).watermark if self.version else 0
        return has_room(self.turns_put - read, bound)

    def _start(self, starting: list[tuple[int, float]]) -> None:
        """Play and score the next rollouts, all at once, and note when each will end."""
        if not starting:
            return
        numbers = range(self.started, self.started + len(starting))
        self.started += len(starting)
        for (place, moment), number, made in zip(starting, numbers, self._make(numbers), strict=True):
            seconds = made.seconds * self._stretch(number)
            self.slots[place] = Slot(moment + seconds, made.rollout, made.generated_tokens)

    def _make(self, numbers: range) -> list[Made]:
        """Play and score the rollouts of these numbers with the weights that explorers have."""
        version = self.acting_version
        self.doing("explorer", f"playing rollouts with version {version}", numbers.start)
        playing = self.rollouts.play_each(
            [self.rollouts.start(number, version=version) for number in numbers],
            version=version,
            student=self.actor,
            teachers=self.teachers,
            heartbeat=self.heed,
            broken=self.broken,
        )
        played: list[Played] = []
        for one in playing:
            played.append(one)
            self._note_broken(one)  # before the next one, which may be one too many
        played.sort(key=lambda one: one.start.number)
        rows = [rows_of(one, name=f"r{one.start.number:06d}", version=version) for one in played]
        return self._scored(rows, played)

    def _scored(self, rows: Sequence[Rollout | None], played: Sequence[Played]) -> list[Made]:
        """Let the teachers score what was played."""
        if not played:
            return []
        self.doing("teacher", f"scoring rollouts of version {self.acting_version}", played[0].start.number)
        scored = {rollout.id: rollout for rollout in self.teachers.score([r for r in rows if r is not None])}
        return [
            Made(scored[unscored.id] if unscored else None, one.generated_tokens, seconds_of(one, self.config.costs))
            for one, unscored in zip(played, rows, strict=True)
        ]

    def _note_end(self, played: Played) -> None:
        """Where versions go by turn: an EnvironmentFailure means that too many rollouts broke off."""
        told_again = played.start.number in self.broken
        self._note_broken(played)
        if not told_again:
            self.rollouts.count_failures(played)

    def _note_broken(self, played: Played) -> None:
        """Journal a rollout that broke off, unless it was only told again."""
        number = played.start.number
        if played.failure is None or number in self.broken:
            return
        self.broken[number] = note_broken(self.store, played)
        if sentence := sentence_of(self.broken[number], count=len(self.broken)):
            self.observer.told(sentence)
