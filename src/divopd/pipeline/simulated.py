"""The simulated clock: one process, real models, environments and scores, virtual time (SPEC §7).

When a rollout becomes visible and how long an update takes follows from the costs in the config, so the same config
gives the same batches, to the bit, on any machine. Rollouts that start close together are generated together: none of
them can end before `costs.rollout_s` is over, so nothing that happens meanwhile could change what they are.

A run that is to stop, or is asked for a checkpoint, saves itself as it was right after its newest update.

A resume starts from the newest checkpoint and lives through the same virtual time again: rollouts that were put before
the crash are put again (which changes nothing), journalled batches are served again, and then it goes on.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from divopd.checkpoints import latest_checkpoint, load_checkpoint, load_weights, publish_weights, save_checkpoint
from divopd.config import Config
from divopd.curricula import Probe, is_probe
from divopd.durable_folder import numbered_path
from divopd.errors import TeacherAwayError
from divopd.explorer import Played, rows_of
from divopd.journal import JournaledBatch
from divopd.learner import Learner, UpdateFigures
from divopd.metrics import batch_figures, gap_warning
from divopd.pipeline.evaluator import Evaluator
from divopd.pipeline.exploration import Exploration, probe_of
from divopd.pipeline.models import load_models, load_student
from divopd.pipeline.role import Interruptible, is_evaluated
from divopd.pipeline.wishes import Stopped, Wishes
from divopd.store import Store
from divopd.turns import Rollout, turn_from_json, turn_to_json

ACTING = "acting"  # the explorers' weights, where a checkpoint was made between two syncs


@dataclass
class Slot:
    """One place for a rollout in flight: when its rollout ends, and what will then enter the queue."""

    ends_at: float = 0.0
    rollout: Rollout | None = None


@dataclass
class Spent:
    """Tokens so far: what a run has cost besides time."""

    generated_tokens: int = 0
    scored_tokens: int = 0
    trained_tokens: int = 0
    computed_tokens: int = 0


class SimulatedRun:
    """A whole run on the virtual clock. `advance` makes one update; `report` hears of everything that was recorded."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        *,
        report: Callable[[str, dict[str, Any]], None],
        wishes: Wishes | None = None,
    ) -> None:
        torch.set_num_threads(config.threads)
        self.config, self.folder, self.report = config, folder, report
        self.wishes = wishes or Wishes()
        models = load_models(config)
        self.codec = models.codec
        self.learner = Learner(models.student, config.learner)
        self.actor = load_student(config)  # explorers keep their weights while the learner changes its own
        self.composer = config.make_composer()
        self.exploration = Exploration(config, self.codec)
        self.evaluator = Evaluator(config, self.codec)
        self.store = Store.open(folder)
        self.teachers = models.teachers.waited_for(self._note_absence)
        self.epoch = self.store.begin_learner()
        self.time = 0.0
        self.version = 0  # of the learner
        self.acting_version = 0  # of the explorers
        self.started = 0  # rollouts
        self.turns_put = 0
        self.rollouts_put = 0
        self.slots = [Slot() for _ in range(config.explorer.rollouts_in_flight)]
        self.probes: list[Probe] = []
        self.spent = Spent()
        self._resume()
        self._newest = self._state()  # right after the newest update: what a checkpoint saves

    # ── the learner's side ────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Train to the end of the config; every update is recorded, evaluated and checkpointed as it says.

        When the run is to stop, its newest update is checkpointed and Stopped is raised.
        """
        try:
            self._evaluate()
            while self.version < self.config.learner.updates:
                self.advance()
        except Stopped:
            self._checkpoint()
            raise
        finally:
            self.store.close()

    def advance(self) -> None:
        """One update: wait for a batch, let the explorers live through the time it takes, train, sync."""
        update = self.version
        waited_from = self.time
        batch = self._next_batch(update)
        costs = self.config.costs
        tokens = sum(turn.tokens for turn in batch.turns)
        composed_at = self.time
        self._explore(until=self.time + costs.update_s + tokens * costs.trained_token_s)
        self._heed()
        figures = self.learner.update(batch.turns, batch.entry.weights)
        self.version += 1
        self.spent.trained_tokens += figures.tokens
        self.spent.computed_tokens += figures.computed_tokens
        if self.version % self.config.explorer.sync_interval == 0:
            self._sync()
        self._record(batch, figures, waited_s=composed_at - waited_from)
        self._newest = self._state()
        self._evaluate()
        due = self.version % self.config.learner.checkpoint_every == 0 and self.acting_version == self.version
        if due or self.version == self.config.learner.updates:
            self._checkpoint()

    def _heed(self) -> None:
        """Do what is asked of the run. The weights are still those of `_newest` wherever this is called."""
        self.wishes.check()
        if self.wishes.take_checkpoint():
            self._checkpoint()

    def _note_absence(self, error: TeacherAwayError) -> None:
        """Real time passes while a teacher is away, virtual time does not."""
        self.store.record_event("teacher_away", {"error": str(error)})
        self._heed()

    def _next_batch(self, update: int) -> JournaledBatch:
        """Compose the batch as soon as the pool holds a whole one, or serve it again from the journal."""
        limit = self.time + self.config.learner.max_wait_s
        again = update < self.store.updates
        while self.rollouts_put < self.store.rollouts(available_by=update):
            self._next_arrival()  # a resume comes to the moment up to which the run had got
        if again:
            batch = self.store.batch(update)
            if len(batch.turns) < self.config.composer.batch_size:  # it was the limit that ended the wait
                self._explore(until=max(limit, self.time))
            return batch
        while (rows := self._rows(update)) < self.config.composer.batch_size:
            if self._next_end() >= limit and rows:
                self._explore(until=max(limit, self.time))
                break
            self._next_arrival()
        return self.store.compose(self.composer, update=update, epoch=self.epoch)

    def _rows(self, update: int) -> int:
        """How many rows a batch could have now: for a gated method valid turns only."""
        pool = self.store.pool(self.composer, update=update)
        return sum(not self.composer.gated or candidate.reason is None for candidate in pool)

    def _sync(self) -> None:
        with torch.no_grad():
            for mine, learned in zip(
                self.actor.model.parameters(), self.learner.policy.model.parameters(), strict=True
            ):
                mine.copy_(learned)
        self.acting_version = self.version

    # ── the explorers' side ───────────────────────────────────────────────────────────────────────────────────────

    def _next_end(self) -> float:
        return min(slot.ends_at for slot in self.slots)

    def _next_arrival(self) -> None:
        """Go on to the next arrival. Admission control holds nobody back while the learner itself waits."""
        before = self.rollouts_put
        while self.rollouts_put == before:
            for slot in self.slots:
                slot.ends_at = self.time if slot.ends_at == inf else slot.ends_at
            self._explore(until=self._next_end(), inclusive=True)

    def _explore(self, *, until: float, inclusive: bool = False) -> None:
        """Let virtual time pass: rollouts that end enter the queue in order, and their slots start anew."""
        for slot in self.slots:
            if slot.ends_at == inf and self._has_room():
                slot.ends_at = self.time
        while True:
            due = sorted(
                (s for s in self.slots if s.ends_at < until or (inclusive and s.ends_at == until)),
                key=lambda s: s.ends_at,
            )
            if not due:
                break
            horizon = due[0].ends_at + self.config.costs.rollout_s
            starting: list[tuple[Slot, float]] = []
            for slot in due:
                if slot.ends_at >= horizon:
                    break
                starting += self._arrive(slot)
            self._start(starting)
        if until != inf:
            self.time = max(self.time, until)

    def _arrive(self, slot: Slot) -> list[tuple[Slot, float]]:
        """What a slot holds enters the queue; the slot and its time, if it may start again at once."""
        moment, rollout = slot.ends_at, slot.rollout
        slot.rollout = None
        if rollout is not None:
            self.store.put(rollout)
            self.turns_put += len(rollout.turns)
            self.rollouts_put += 1
            if self.config.method == "turnopd" and is_probe(rollout.version):
                self.probes.append(probe_of(rollout))
        slot.ends_at = inf
        return [(slot, moment)] if self._has_room() else []

    def _has_room(self) -> bool:
        """Admission control: off, or fewer turns wait than it allows."""
        bound = self.config.explorer.max_backlog
        if bound is None:
            return True
        read = self.store.journal(self.version - 1).watermark if self.version else 0
        return self.turns_put - read < bound

    def _start(self, starting: list[tuple[Slot, float]]) -> None:
        """Play and score the next rollouts, all at once, and note when each will end."""
        if not starting:
            return
        numbers = range(self.started, self.started + len(starting))
        self.started += len(starting)
        starts = [self.exploration.start(n, version=self.acting_version, probes=self.probes) for n in numbers]
        playing = self.exploration.play_each(
            starts,
            version=self.acting_version,
            student=self.actor,
            teachers=self.teachers,
            heartbeat=self._heed,
        )
        played = sorted(playing, key=lambda one: one.start.number)
        rows = [rows_of(one, name=f"r{one.start.number:06d}", version=self.acting_version) for one in played]
        scored = {rollout.id: rollout for rollout in self.teachers.score([r for r in rows if r is not None])}
        for (slot, moment), one, unscored in zip(starting, played, rows, strict=True):
            slot.rollout = scored[unscored.id] if unscored else None
            slot.ends_at = moment + self._duration(one)

    def _duration(self, played: Played) -> float:
        """Virtual seconds from the start of a rollout to its arrival in the queue."""
        costs = self.config.costs
        generated = sum(len(turn.response.ids) for turn in played.turns)
        whole = len(played.turns[-1].prompt.ids) + len(played.turns[-1].response.ids) if played.turns else 0
        self.spent.generated_tokens += generated
        self.spent.scored_tokens += sum(
            len(t.prompt.ids) + len(t.response.ids) for t in played.turns if t.actor == "student"
        )
        acting = generated * costs.generated_token_s + len(played.turns) * costs.environment_step_s
        return costs.rollout_s + acting + whole * (costs.read_token_s + costs.scored_token_s)

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, batch: JournaledBatch, learner: UpdateFigures, *, waited_s: float) -> None:
        update = batch.entry.update
        decided = self.store.decided(update)
        figures = {
            **asdict(batch_figures(batch.candidates, update=update)),
            "learner": asdict(learner),
            "spent": asdict(self.spent),
            "virtual_s": self.time,
            "waited_s": waited_s,
            "rollouts_used": decided.used,
            "rollouts_unused": decided.unused,
            "rollouts_put": self.rollouts_put,
            "turns_put": self.turns_put,
            "queued": self.turns_put - batch.entry.watermark,
            "stale": len(batch.entry.stale),
            "aged_out": len(batch.entry.aged_out),
            "invalid": len(batch.entry.invalid),
        }
        self.store.record_figures("update", update, figures)
        if warning := gap_warning(learner.logprob_gap, update=update):
            self.store.record_event("logprob_gap", {"update": update, "warning": warning})
        self.report("update", {"update": update, **figures})

    def _evaluate(self) -> None:
        """Play the fixed evaluation tasks with the learner's weights, once for every version that is due."""
        if not is_evaluated(self.config, self.version) or self.version in self.store.figures("evaluation"):
            return
        figures = {
            **self.evaluator.evaluate(Interruptible(self.learner.policy, self._heed)),
            "virtual_s": self.time,
            "spent": asdict(self.spent),
        }
        publish_weights(self.folder / "weights", self.version, self.learner.policy.model)
        self.store.record_figures("evaluation", self.version, figures)
        self.report("evaluation", {"version": self.version, **figures})

    def _state(self) -> dict[str, Any]:
        """All that a resume needs besides weights and optimizer, not yet as JSON: most of it is never written."""
        return {
            "time": self.time,
            "version": self.version,
            "acting_version": self.acting_version,
            "started": self.started,
            "turns_put": self.turns_put,
            "rollouts_put": self.rollouts_put,
            "spent": asdict(self.spent),
            "probes": list(self.probes),
            "slots": [(slot.ends_at, slot.rollout) for slot in self.slots],
        }

    def _checkpoint(self) -> None:
        """Save the run as it was right after its newest update, if there is one."""
        if self.version == 0:
            return
        folder, update = self.folder / "checkpoints", self.version - 1
        if not numbered_path(folder, update).exists():
            if self._acts_behind:
                publish_weights(self.folder / ACTING, self.acting_version, self.actor.model, keep=2)
            model, optimizer = self.learner.policy.model, self.learner.optimizer
            save_checkpoint(folder, update=update, model=model, optimizer=optimizer, state=_to_json(self._newest))
        self.store.acknowledge(update, epoch=self.epoch)

    @property
    def _acts_behind(self) -> bool:
        """Whether explorers still act, and with other weights than the learner's."""
        return self.acting_version < self.version < self.config.learner.updates

    def _resume(self) -> None:
        newest = latest_checkpoint(self.folder / "checkpoints")
        if newest is None:
            return
        state = load_checkpoint(newest, model=self.learner.policy.model, optimizer=self.learner.optimizer).state
        for name in ("time", "version", "acting_version", "started", "turns_put", "rollouts_put"):
            setattr(self, name, state[name])
        if self._acts_behind:
            load_weights(numbered_path(self.folder / ACTING, self.acting_version), self.actor.model)
        else:
            self._sync()
        self.spent = Spent(**state["spent"])
        self.probes = [Probe(p["version"], p["success"], tuple(p["disagreements"])) for p in state["probes"]]
        for slot, (ends_at, turns) in zip(self.slots, state["slots"], strict=True):
            slot.ends_at = ends_at
            slot.rollout = _rollout(turns) if turns else None


def _to_json(state: dict[str, Any]) -> dict[str, Any]:
    probes = [asdict(probe) for probe in state["probes"]]
    slots = [(ends_at, held and [turn_to_json(turn) for turn in held.turns]) for ends_at, held in state["slots"]]
    return state | {"probes": probes, "slots": slots}


def _rollout(turns: list[dict[str, Any]]) -> Rollout:
    rows = tuple(turn_from_json(turn, where="checkpoint") for turn in turns)
    return Rollout(rows[0].rollout, rows)
