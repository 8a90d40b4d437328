"""The role of an explorer: it plays rollouts without end, follows the learner's weights, and examines what is due.

`Explorer` decides when weights change and when a rollout begins; it knows no run, no clock and no file. `Orders` is
what it is to do: here those of a live run, in benchmarks/slots.py those of an experiment in virtual time.
"""

import time
from typing import Literal, Protocol

from divopd.errors import CheckpointError
from divopd.evaluation import exam_of
from divopd.explorer import Acting, Played, Start, rows_of
from divopd.models.engine import StudentEngine
from divopd.pipeline.access import POLL_S, Access
from divopd.pipeline.asked_teachers import AskedTeachers
from divopd.pipeline.broken import note_broken
from divopd.pipeline.examining import Examiner
from divopd.pipeline.models import load_actor
from divopd.pipeline.rollouts import TrainingRollouts, has_room
from divopd.pipeline.vocabularies import Vocabularies
from divopd.player import Player


class Orders(Protocol):
    """What an explorer is to do."""

    def wanted(self) -> int | None:
        """The policy version to act with; None as long as there is none."""
        ...

    def load(self, version: int) -> None:
        """Fill the student; a CheckpointError means that the version is gone, replaced by newer ones."""
        ...

    def next(self, version: int) -> tuple[Start, Acting] | None:
        """A rollout to begin with this version; None: nothing is to begin now."""
        ...

    def over(self, played: Played) -> None:
        """A rollout has ended."""
        ...


class Explorer:
    """Plays what its orders say, and changes the weights when they want others.

    With versions by `rollout` new weights wait until the rollouts in flight have ended, and none begins meanwhile. By
    `turn` they wait only for the responses that are being written; a rollout goes on with the new ones. Older weights,
    which an evaluation may want, never come into a rollout that has begun.
    """

    def __init__(self, player: Player, orders: Orders, *, versions: Literal["rollout", "turn"]) -> None:
        self.player, self.orders, self._by_turn = player, orders, versions == "turn"

    def step(self) -> bool:
        """Go on for about the time of one token. False: there is nothing to do at the moment."""
        player, wanted = self.player, self.orders.wanted()
        if wanted == player.version:
            player.release()  # newer weights were wanted, and are gone
            self._begin()
        elif wanted is not None and self._may_change(wanted):
            self._change(wanted)
        if not player.in_flight:
            return False
        for played in player.step():
            self.orders.over(played)
        return True

    def _begin(self) -> None:
        while self.player.free and (order := self.orders.next(self.player.version)) is not None:
            self.player.begin(*order)

    def _may_change(self, wanted: int) -> bool:
        if not self._by_turn or wanted < self.player.version:
            return not self.player.in_flight
        self.player.hold()
        return self.player.quiet

    def _change(self, wanted: int) -> None:
        try:
            self.orders.load(wanted)
        except CheckpointError:  # replaced by a newer version while it was read
            return
        self.player.go_on(version=wanted)
        self._begin()


def explore(access: Access) -> None:
    """Play rollouts with the newest weights, as many at once as the config says; each is stored when it ends."""
    config, student = access.config, load_actor(access.config)
    vocabularies = Vocabularies(config)
    codec = vocabularies.student_codec()
    rollouts = TrainingRollouts(config, codec, teacher_reader=vocabularies.teacher_reader(), calls=access.store)
    teachers = None
    if rollouts.method.recovers:
        asker = f"explorer-{access.rank}"
        teachers = AskedTeachers(access.store, asker=asker, patterns=config.teacher.by_task)
    examiner = None
    if config.evaluation.share is not None:
        examiner = Examiner(access, exam_of(config, codec), forbidden=vocabularies.forbidden)
    player = Player(rollouts.pool, student, version=-1, teacher_of=teachers.of if teachers else None)
    orders = LiveOrders(access, rollouts, student, examiner=examiner)
    explorer = Explorer(player, orders, versions=config.explorer.versions)
    listener = access.weights.listener(config, student, name=f"explorer-{access.rank}")
    try:
        while not orders.done:
            access.check()
            if listener is not None and (version := listener.look()) is not None:
                orders.received(version)
                player.carry_on(version=version)
            if not explorer.step():
                orders.tell_idle()
                access.wait()
    finally:
        if teachers is not None:
            teachers.forget()
        rollouts.close()


class LiveOrders:
    """What an explorer of a live run is to do: training rollouts, and evaluations if it has an examiner.

    The run's folder is looked at every few milliseconds, not at every token.
    """

    def __init__(
        self, access: Access, rollouts: TrainingRollouts, student: StudentEngine, *, examiner: Examiner | None
    ) -> None:
        self._access, self._rollouts, self._student, self._examiner = access, rollouts, student, examiner
        self._ended = 0  # rollouts
        self._looked = -POLL_S
        self._newest: int | None = None
        self._last_is_there = False
        self._version = -1

    @property
    def done(self) -> bool:
        """The last version is there, so nobody trains on what else is played, and nothing is left to be examined."""
        return self._last_is_there and self._examiner is not None and self._examiner.done

    def wanted(self) -> int | None:
        if time.monotonic() - self._looked >= POLL_S:
            self._looked = time.monotonic()
            self._newest = self._newer(self._access.newest_version())
            self._last_is_there = self._access.config.learner.updates in self._access.weights.versions()
            if self._examiner is not None:
                self._examiner.look()
        due = None if self._examiner is None else self._examiner.version
        return self._newest if due is None else due

    def _newer(self, found: int | None) -> int | None:
        """Never back to older weights: a learner that was restarted comes to these again before it composes a batch."""
        return max((one for one in (found, self._newest) if one is not None), default=None)

    def load(self, version: int) -> None:
        self._access.weights.load(version, self._student)
        self._version = version
        self._tell()

    def received(self, version: int) -> None:
        """The student has a version that was sent to it."""
        self._version = version
        self._newest = self._newer(version)
        self._tell()

    def next(self, version: int) -> tuple[Start, Acting] | None:
        if self._examiner is not None and (start := self._examiner.next(version)) is not None:
            return start, self._examiner.acting
        if not self._wants_training(version):
            return None
        self._rollouts.hear(lambda last: self._access.store.outcomes(after=last))
        [number] = self._access.store.reserve(1)
        return self._rollouts.start(number, version=version), self._rollouts.acting(version)

    def over(self, played: Played) -> None:
        if self._examiner is not None and self._examiner.heard(played):
            return
        self._ended += 1
        self._tell()
        if played.failure is not None:
            note_broken(self._access.store, played)
        rows = rows_of(played, name=f"r{played.start.number:06d}", version=self._version)
        if rows is not None:
            self._access.store.offer(rows, generated_tokens=played.generated_tokens)
        self._rollouts.count_failures(played)

    def tell_idle(self) -> None:
        """Say why nothing is played."""
        if self._newest is None:
            self._access.doing("explorer", "waiting for weights")
        elif not self._last_is_there:
            self._access.doing("explorer", "pausing: enough turns wait (explorer.max_backlog)")

    def _wants_training(self, version: int) -> bool:
        """Not after the last version, nor with one that is evaluated late: what is played with it would be stale."""
        config, newest = self._access.config, self._newest or 0
        if self._last_is_there or newest - version > config.composer.max_staleness:
            return False
        bound = config.explorer.max_backlog
        return bound is None or has_room(self._access.store.backlog(), bound)

    def _tell(self) -> None:
        self._access.doing("explorer", f"playing rollouts with version {self._version}", self._ended)
