"""The learner of the live clock, on one rank or on several."""

import time
from dataclasses import asdict
from shutil import rmtree

from divopd.checkpoints import latest_checkpoint, load_checkpoint, publish_weights, save_checkpoint
from divopd.durable_folder import numbered_folders, numbered_path
from divopd.journal import JournaledBatch
from divopd.learner import Learner, UpdateFigures
from divopd.metrics import batch_figures, gap_warning
from divopd.pipeline import ranks
from divopd.pipeline.live import CHECKPOINT_WANTED, RENDEZVOUS
from divopd.pipeline.models import load_student
from divopd.pipeline.role import Role, is_evaluated
from divopd.pipeline.wishes import Stopped
from divopd.turns import Turn

KEPT_VERSIONS = 3  # besides those that are evaluated: an explorer may still be reading one


class CheckpointWanted(Exception):
    """Somebody asked for a checkpoint; raised where the learner waits or is about to compose."""


class LiveLearner:
    """Composes, trains and publishes. Updates past the newest checkpoint are served again from the journal.

    Every rank runs this same code in step; only the first has to do with the store, and only it deletes.
    """

    def __init__(self, role: Role) -> None:
        assert role.folder is not None
        self.role, self.config, self.store, self.folder = role, role.config, role.store, role.folder
        self.weights = self.folder / "weights"
        self.is_first = role.rank == 0
        wanted = self.config.learner.ranks
        if wanted > 1:
            ranks.join(self.folder / RENDEZVOUS, rank=role.rank, ranks=wanted, device=self.config.student.device)
        self.learner = Learner(load_student(role.config), role.config.learner)
        self.composer = role.config.make_composer()
        self.epoch = self.store.begin_learner() if self.is_first else 0
        self.version = 0
        self.learner_s = self.waited_s = self.starved_s = 0.0
        self.trained_tokens = self.computed_tokens = 0
        self.began = time.monotonic()
        newest = latest_checkpoint(self.folder / "checkpoints")
        if newest is not None:
            state = load_checkpoint(newest, model=self.learner.policy.model, optimizer=self.learner.optimizer).state
            self.version, self.trained_tokens = state["version"], state["trained_tokens"]
            self.computed_tokens, self.learner_s = state["computed_tokens"], state["learner_s"]
            self.began -= state["wall_s"]

    def run(self) -> None:
        """Train to the last update, or to the end of the update at which the run is to stop."""
        self._publish()
        while self.version < self.config.learner.updates:
            batch = self._next_batch() if self.is_first else "stop"  # which nobody hears
            rows = ranks.share_rows(batch if isinstance(batch, str) else (batch.turns, batch.weights))
            if rows == "stop":
                break
            if rows == "checkpoint":
                self._checkpoint()
                continue
            figures = self._update(*rows)
            if not isinstance(batch, str):
                self._record(batch, figures)
            if self.version % self.config.learner.checkpoint_every == 0:
                self._checkpoint()
        self._checkpoint()
        ranks.leave()

    def _next_batch(self) -> JournaledBatch | ranks.Wish:
        """The batch of this update, from the journal or newly composed, unless something else is wanted first."""
        try:
            self._check()
            return self._composed()
        except Stopped:
            return "stop"
        except CheckpointWanted:
            return "checkpoint"

    def _check(self) -> None:
        self.role.check()
        if (self.folder / CHECKPOINT_WANTED).exists():
            raise CheckpointWanted

    def _composed(self) -> JournaledBatch:
        self.waited_s = self.starved_s = 0.0
        if self.version < self.store.updates:
            return self.store.batch(self.version)
        start = now = time.monotonic()
        while (rows := self._rows()) < self.config.composer.batch_size:
            if rows and now - start > self.config.learner.max_wait_s:
                break
            self._check()
            self.role.wait()
            before, now = now, time.monotonic()
            self.starved_s += 0.0 if rows else now - before
        self.waited_s = time.monotonic() - start
        return self.store.compose(self.composer, update=self.version, epoch=self.epoch)

    def _rows(self) -> int:
        pool = self.store.pool(self.composer, update=self.version)
        return sum(not self.composer.gated or candidate.reason is None for candidate in pool)

    def _update(self, turns: list[Turn], weights: list[float]) -> UpdateFigures:
        start = time.monotonic()
        figures = self.learner.update(turns, weights)
        self.version += 1
        self.learner_s += time.monotonic() - start
        self.trained_tokens += figures.tokens
        self.computed_tokens += figures.computed_tokens
        if self.version % self.config.explorer.sync_interval == 0 or is_evaluated(self.config, self.version):
            self._publish()
        return figures

    def _publish(self) -> None:
        if not numbered_path(self.weights, self.version).exists():
            publish_weights(self.weights, self.version, self.learner.policy.model)
        for folder in numbered_folders(self.weights)[:-KEPT_VERSIONS]:
            if self.is_first and not is_evaluated(self.config, int(folder.name)):
                rmtree(folder)

    def _record(self, batch: JournaledBatch, learner: UpdateFigures) -> None:
        entry = batch.entry
        spent, decided = self.store.spent(), self.store.decided(entry.update)
        figures = {
            **asdict(batch_figures(batch.candidates, update=entry.update)),
            "learner": asdict(learner),
            "spent": {
                "generated_tokens": spent.generated_tokens,
                "scored_tokens": spent.scored_tokens,
                "trained_tokens": self.trained_tokens,
                "computed_tokens": self.computed_tokens,
            },
            "wall_s": time.monotonic() - self.began,
            "learner_s": self.learner_s,
            "waited_s": self.waited_s,
            "starved_s": self.starved_s,  # of it, with no valid turn in the queue
            "rollouts_used": decided.used,
            "rollouts_unused": decided.unused,
            "rollouts_put": spent.rollouts,
            "turns_put": spent.turns,
            "queued": self.store.backlog(),
            "stale": len(entry.stale),
            "aged_out": len(entry.aged_out),
            "invalid": len(entry.invalid),
        }
        if warning := gap_warning(learner.logprob_gap, update=entry.update):
            self.store.record_event("logprob_gap", {"update": entry.update, "warning": warning})
        self.store.record_figures("update", entry.update, figures)

    def _checkpoint(self) -> None:
        """Save the newest update, if there is one; whoever asked for it has it then."""
        if self.version:
            self._save()
        if self.is_first:
            (self.folder / CHECKPOINT_WANTED).unlink(missing_ok=True)

    def _save(self) -> None:
        state = {
            "version": self.version,
            "trained_tokens": self.trained_tokens,
            "computed_tokens": self.computed_tokens,
            "learner_s": self.learner_s,
            "wall_s": time.monotonic() - self.began,
        }
        model, optimizer = self.learner.policy.model, self.learner.optimizer
        folder = self.folder / "checkpoints"
        save_checkpoint(folder, update=self.version - 1, model=model, optimizer=optimizer, state=state)
        if self.is_first:
            self.store.acknowledge(self.version - 1, epoch=self.epoch)
