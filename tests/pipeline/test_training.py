"""The training loop itself, with a learner that hashes, a world with a script and no torch: it is stopped and broken
off at every call that it makes, and always ends where an undisturbed run ends.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_processes import make_rollout

from divopd.audits.ledger import audit_ledger
from divopd.composers import Composer
from divopd.config import Config
from divopd.errors import FencedError
from divopd.learner import Learner
from divopd.methods import METHODS
from divopd.pipeline.training import train
from divopd.pipeline.wishes import Stopped, Wishes
from divopd.pipeline.world import Waited
from divopd.records import Clock, Observer, Observers, UpdateFigures, UpdateRecord
from divopd.run.durable_folder import numbered_folders
from divopd.run.folder import RunFolder
from divopd.store import JournaledBatch, Store
from divopd.turns import Rollout, Turn
from doubles.hashing_learner import HashingLearner
from doubles.listener import Listener
from doubles.memory_store import MemoryStore
from doubles.scripted_world import UPDATE_S, ScriptedWorld

UPDATES = 7
BATCH = 8


def config(
    *, updates: int = UPDATES, checkpoint_every: int = 3, keep_tokens: bool = True, method: str = "divopd"
) -> Config:
    learner = {"updates": updates, "checkpoint_every": checkpoint_every, "keep_tokens": keep_tokens}
    composer = {"batch_size": BATCH, "pool_multiplier": 4, "cap": 2, "max_staleness": 6, "max_pending_age": 3}
    environment = {"name": "alfworld-small"}
    return Config.model_validate(
        {"method": method, "environment": environment, "learner": learner, "composer": composer}
    )


def script(number: int, version: int) -> Rollout:
    """About one turn in five is invalid."""
    return make_rollout(f"r{number:06d}", version=version)


class Interrupted(Exception):
    """The tests' own end of a run, at once and without a checkpoint."""


class Diary:
    """What was asked, of whom, in order. `after`: what happens as soon as so many lines are written."""

    def __init__(self, after: int | None = None, happens: Callable[[], object] = lambda: None) -> None:
        self.lines: list[str] = []
        self._after, self._happens = after, happens

    def write(self, *words: object) -> None:
        self.lines.append(" ".join(map(str, words)))
        if len(self.lines) == self._after:
            self._happens()


class DiaryStore(MemoryStore):
    """Each call that changes the ledger has its line when it is done. A new life writes into a new `diary`."""

    def __init__(self) -> None:
        super().__init__()
        self.diary = Diary()

    def put(self, rollout: Rollout, *, available_at: int | None = None, generated_tokens: int = 0) -> bool:
        new = super().put(rollout, available_at=available_at, generated_tokens=generated_tokens)
        self.diary.write("put")
        return new

    def compose(self, composer: Composer, *, update: int, epoch: int) -> JournaledBatch:
        batch = super().compose(composer, update=update, epoch=epoch)
        self.diary.write("compose", update)
        return batch

    def batch(self, update: int) -> JournaledBatch:
        self.diary.write("serve again", update)
        return super().batch(update)

    def record(self, record: UpdateRecord) -> bool:
        new = super().record(record)
        self.diary.write("record", record.update)
        return new

    def acknowledge(self, update: int, *, epoch: int) -> None:
        super().acknowledge(update, epoch=epoch)
        self.diary.write("acknowledge", update)

    def settle(self, update: int, *, epoch: int) -> int:
        turns = super().settle(update, epoch=epoch)
        self.diary.write("settle", update)
        return turns


class DiaryWorld(ScriptedWorld):
    """Also notices whether explorers are given what the learner holds."""

    def __init__(self, store: DiaryStore) -> None:
        super().__init__(store, script, batch_size=BATCH)
        self.diary = store.diary

    def publish(self, version: int, learner: Learner) -> None:
        super().publish(version, learner)
        self.diary.write("publish", version)

    def evaluate(self, version: int, learner: Learner) -> None:
        super().evaluate(version, learner)
        self.diary.write("evaluate", version)

    def wait(self, composer: Composer, *, update: int) -> Waited:
        self.diary.write("wait for", update)
        return super().wait(composer, update=update)


class DiaryLearner(HashingLearner):
    """Looks into the ledger while it trains: what it trains must be journalled by then."""

    def __init__(self, store: DiaryStore) -> None:
        super().__init__()
        self.store = store

    def update(self, turns: Sequence[Turn], weights: Sequence[float]) -> UpdateFigures:
        keys = [turn.key for turn in turns]
        [entry] = [entry for entry in self.store.entries if entry.selected == keys]
        assert entry.weights == list(weights)
        self.store.diary.write("train", entry.update)
        figures = super().update(turns, weights)
        self.store.diary.write("trained", entry.update)
        return figures

    def save(self, folder: Path, *, update: int, state: Mapping[str, Any]) -> "Late":
        super().save(folder, update=update, state=state)
        return Late(self, update)

    def load(self, path: Path) -> dict[str, Any]:
        self.store.diary.write("load", int(path.name))
        return super().load(path)


class Late:
    """A checkpoint that is there once the next update is made. It has its line when somebody waited for it."""

    def __init__(self, learner: DiaryLearner, update: int) -> None:
        self._learner, self._update, self._began = learner, update, learner.asked.count("update")

    @property
    def done(self) -> bool:
        return self._learner.asked.count("update") > self._began

    def wait(self) -> None:
        self._learner.store.diary.write("save", self._update)


class Run:
    """A run that may be lived through in several lives: a store and a folder that stay, all else is new each time."""

    def __init__(self, folder: Path, settings: Config) -> None:
        self.folder, self.settings, self.store = RunFolder(folder), settings, DiaryStore()

    def live(
        self,
        diary: Diary | None = None,
        *,
        observer: Observer | None = None,
        wishes: Wishes | None = None,
        clock: Clock = "virtual",
    ) -> str:
        """Train to the end; returns the learner's digest. Only what is asked of train's partners is written down."""
        self.store.diary = diary or Diary()
        self.world, learner = DiaryWorld(self.store), DiaryLearner(self.store)
        self.world.clock = clock
        train(
            self.settings,
            learner=learner,
            ledger=self.store,
            world=self.world,
            run=self.folder,
            observer=observer or Observers(),
            wishes=wishes or Wishes(),
        )
        return learner.digest

    @property
    def facts(self) -> list[UpdateRecord]:
        """The records, without the waiting: a wait that was broken off cannot be known to the next life."""
        return [replace(record, waited_s=0.0) for record in self.store.update_records().values()]


@pytest.fixture
def settings() -> Config:
    """With tokens that are forgotten, a resume has no more than it needs."""
    return config(keep_tokens=False)


@pytest.fixture
def undisturbed(settings: Config, tmp_path: Path) -> tuple[str, list[UpdateRecord], int]:
    """How a run ends that nothing happened to: the digest, the records, and how many lines its diary has."""
    run, diary = Run(tmp_path / "undisturbed", settings), Diary()
    digest = run.live(diary)
    return digest, run.facts, len(diary.lines)


def test_the_order_of_things(tmp_path: Path) -> None:
    """Publish, evaluate, checkpoint when it is due, wait, journal, train, record; a checkpoint is acknowledged."""
    diary = Diary()
    Run(tmp_path, config(updates=5, checkpoint_every=2, keep_tokens=False)).live(diary)
    lines = [line for line in diary.lines if line != "put"]
    expected: list[str] = []
    for version in range(6):
        expected += [f"publish {version}", f"evaluate {version}"]
        if version in (2, 4, 5):
            expected += [f"save {version - 1}", f"acknowledge {version - 1}"]
        if version in (4, 5):  # the checkpoint before this one stays good for a resume
            expected += [f"settle {1 if version == 4 else 3}"]
        if version < 5:
            expected += [f"{what} {version}" for what in ("wait for", "compose", "train", "trained", "record")]
    assert lines == expected


def test_the_learner_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    """On the wall clock it goes on, and says when one is there; before the next, and at the end, it waits."""
    diary = Diary()
    Run(tmp_path, config(updates=5, checkpoint_every=2, keep_tokens=False)).live(diary, clock="wall")
    lines = [line for line in diary.lines if line.split()[0] in ("publish", "trained", "save", "acknowledge", "settle")]
    expected = ["publish 0", "trained 0", "publish 1", "trained 1"]
    expected += ["publish 2", "trained 2", "publish 3", "save 1", "acknowledge 1", "trained 3"]
    expected += ["publish 4", "trained 4", "publish 5", "save 3", "acknowledge 3", "settle 1"]
    expected += ["save 4", "acknowledge 4", "settle 3"]
    assert lines == expected


def test_explorers_get_every_version(tmp_path: Path) -> None:
    """Each with the weights that the learner has after so many updates, and each is offered for evaluation."""
    run = Run(tmp_path, config())
    run.live()
    versions = [version for version, _ in run.world.published]
    assert versions == run.world.evaluated == list(range(UPDATES + 1))
    learner = HashingLearner()
    assert run.world.published[0][1] == learner.weights()
    for batch, (_, weights) in zip(run.store.batches, run.world.published[1:], strict=True):
        learner.update(batch.turns, batch.weights)
        assert weights == learner.weights()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_to_the_end(tmp_path: Path, method: str) -> None:
    """Every turn has one fate, the account adds up, and the journal names the method."""
    run = Run(tmp_path, config(method=method))
    run.live()
    assert run.store.account().adds_up
    assert [(entry.update, entry.settings.method) for entry in run.store.entries] == [
        (n, method) for n in range(UPDATES)
    ]
    trained = [key for entry in run.store.entries for key in entry.selected]
    assert len(trained) == len(set(trained)) >= UPDATES


def test_records_are_cumulative_and_told_once(tmp_path: Path) -> None:
    """Tokens and seconds since the start of the run; every record is written, and the observer hears it after that."""
    run, listener = Run(tmp_path, config()), Listener(lambda record: run.store.update_records()[record.update])
    run.live(observer=listener)
    assert listener.updates == list(run.store.update_records().values())
    trained = learner_s = 0
    for batch, record in zip(run.store.batches, listener.updates, strict=True):
        trained += sum(turn.tokens for turn in batch.turns)
        learner_s += UPDATE_S
        assert (record.spent.trained_tokens, record.spent.learner_s) == (trained, learner_s)
        assert record.learner is not None
        assert record.learner.rows == record.batch.rows == len(batch.turns)
        assert record.clock == "virtual"
        assert record.queue.drained == run.store.decided(record.update).drained
    arrived = run.store.arrived()
    last = listener.updates[-1]
    assert (last.queue.turns_put, last.queue.rollouts_put) == (arrived.turns, arrived.rollouts)
    assert (last.spent.scored_tokens, last.elapsed_s) == (arrived.scored_tokens, arrived.rollouts + learner_s)
    assert last.waited_s + sum(record.waited_s for record in listener.updates[:-1]) == arrived.rollouts


# ── stopped and broken off ────────────────────────────────────────────────────────────────────────────────────────


def test_broken_off_anywhere_it_ends_the_same(
    undisturbed: tuple[str, list[UpdateRecord], int], settings: Config, tmp_path: Path
) -> None:
    """Broken off at each call that the loop makes, and resumed: the same weights and the same records."""
    digest, records, calls = undisturbed

    def break_off() -> None:
        raise Interrupted

    for call in range(1, calls):
        run = Run(tmp_path / str(call), settings)
        with pytest.raises(Interrupted):
            run.live(Diary(call, break_off))
        assert run.live() == digest
        assert run.facts == records
        assert run.store.acknowledged == UPDATES


def test_broken_off_again_and_again_it_ends_the_same(
    undisturbed: tuple[str, list[UpdateRecord], int], settings: Config, tmp_path: Path
) -> None:
    """A life that is too short for a checkpoint gets nowhere, a little longer ones get to the end."""
    digest, records, _ = undisturbed

    def break_off() -> None:
        raise Interrupted

    run, ends = Run(tmp_path / "run", settings), 0
    for length in (20, 60):
        for _ in range(20):
            with suppress(Interrupted):
                assert run.live(Diary(length, break_off)) == digest
                ends += 1
    assert ends
    assert run.facts == records


def test_asked_to_stop_anywhere_it_saves_and_ends_the_same(
    undisturbed: tuple[str, list[UpdateRecord], int], settings: Config, tmp_path: Path
) -> None:
    """Stopped means that a checkpoint has the newest update: no update is trained again."""
    digest, records, calls = undisturbed
    stops = 0
    for call in range(1, calls):
        run, wishes = Run(tmp_path / str(call), settings), Wishes()
        try:
            assert (
                run.live(Diary(call, lambda wishes=wishes: setattr(wishes, "to_stop", True)), wishes=wishes) == digest
            )
        except Stopped:
            stops += 1
            recorded = len(run.store.update_records())
            newest = run.folder.newest_checkpoint()
            assert (0 if newest is None else int(newest.name) + 1) == recorded == run.store.acknowledged
        diary = Diary()
        assert run.live(diary) == digest
        trained = [int(line.split()[1]) for line in diary.lines if line.startswith("train ")]
        assert trained == list(range(UPDATES - len(trained), UPDATES))
        assert run.facts == records
    assert stops > calls / 2


def test_a_wish_for_a_checkpoint_is_heard_at_once(tmp_path: Path) -> None:
    """It is made before the next update, though none is due, and the run goes on."""
    wishes = Wishes()
    run = Run(tmp_path, config(checkpoint_every=50))
    diary = Diary()
    run.live(diary, wishes=wishes, observer=Listener(lambda record: record.update == 1 and wishes.ask_checkpoint()))
    saved = diary.lines.index("save 1")
    assert diary.lines.index("record 1") < saved < diary.lines.index("compose 2")
    assert [line for line in diary.lines if line.startswith("save")] == ["save 1", f"save {UPDATES - 1}"]


def test_the_first_record_counts(tmp_path: Path) -> None:
    """A life that serves batches again, when more has arrived, neither changes their records nor tells of them."""
    run = Run(tmp_path, config(checkpoint_every=50))

    def break_off(record: UpdateRecord) -> None:
        if record.update == 2:
            raise Interrupted

    first, second = Listener(break_off), Listener()
    with pytest.raises(Interrupted):
        run.live(observer=first)
    for number in range(100, 120):
        run.store.put(script(number, 0))
    diary = Diary()
    run.live(diary, observer=second)
    assert [line for line in diary.lines if line.startswith("serve")] == [
        "serve again 0",
        "serve again 1",
        "serve again 2",
    ]
    assert [record.update for record in first.updates] == [0, 1, 2]
    assert [record.update for record in second.updates] == [3, 4, 5, 6]
    assert list(run.store.update_records().values()) == first.updates + second.updates
    assert first.updates[-1].queue.turns_put < second.updates[0].queue.turns_put


@pytest.mark.parametrize("kept", [0, 1], ids=["the newest", "the one before"])
def test_either_kept_checkpoint_is_good_for_a_resume(
    undisturbed: tuple[str, list[UpdateRecord], int], settings: Config, tmp_path: Path, kept: int
) -> None:
    """Tokens that the older of the two would need are not forgotten."""
    digest, records, _ = undisturbed
    for update in range(3, UPDATES):
        run = Run(tmp_path / str(update), settings)

        def break_off(record: UpdateRecord, update: int = update) -> None:
            if record.update == update:
                raise Interrupted

        with pytest.raises(Interrupted):
            run.live(observer=Listener(break_off))
        newest_first = numbered_folders(run.folder.checkpoints)[::-1]
        for folder in newest_first[:kept]:
            shutil.rmtree(folder)
        assert run.live() == digest
        assert run.facts == records


@pytest.mark.parametrize("keep_tokens", [True, False])
def test_tokens_are_forgotten_only_if_that_is_wanted(tmp_path: Path, keep_tokens: bool) -> None:
    """Those of turns that left by the checkpoint before the last."""
    run = Run(tmp_path, config(keep_tokens=keep_tokens))
    run.live()
    left = {key for key, fate in run.store.fate.items() if fate.update is not None and fate.update < 6}
    assert run.store.settled == (set() if keep_tokens else left)


def test_a_second_learner_fences_the_first(tmp_path: Path) -> None:
    """Whoever began last goes on; the other one ends at its next batch and leaves no checkpoint behind."""
    run = Run(tmp_path, config(checkpoint_every=1))
    begin_another = Listener(lambda record: record.update == 2 and run.store.begin_learner())
    with pytest.raises(FencedError):
        run.live(observer=begin_another)
    assert run.store.updates == 3
    assert run.store.acknowledged == 2


def test_the_same_with_a_real_store(tmp_path: Path) -> None:
    """SQLite serves the batches that the store of lists serves; the ledger is exact."""
    in_memory, settings = Run(tmp_path / "memory", config()), config()
    digest = in_memory.live()
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    learner = HashingLearner()
    with Store.create(folder.store) as store:
        world = ScriptedWorld(store, script, batch_size=BATCH)
        train(settings, learner=learner, ledger=store, world=world, run=folder, observer=Observers(), wishes=Wishes())
        audit_ledger(store)
        assert store.update_records() == in_memory.store.update_records()
    assert learner.digest == digest


def test_the_loop_imports_no_torch() -> None:
    code = "import sys, divopd.pipeline.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
