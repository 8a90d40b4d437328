"""How versions get to explorers: what is written when, by whom, and what a kill leaves."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")
import torch
from safetensors.torch import load_file, save_file

from divopd.config import Config
from divopd.errors import CheckpointError
from divopd.models.model_files import model_folder
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.weights import copied_weights, fill_weights, named_tensors
from divopd.pipeline.access import Access, WeightsFolder
from divopd.pipeline.begin import begin_run
from divopd.pipeline.exploring import LiveOrders
from divopd.pipeline.live import LiveWorld
from divopd.pipeline.publishing import FolderWay
from divopd.pipeline.shelf import Arrays, ObjectStoreWay, Shelf, as_arrays
from divopd.run.beside import Beside
from divopd.run.checkpoints import publish_weights, read_weights
from divopd.run.durable_folder import verify
from divopd.run.folder import RunFolder
from divopd.run.tensor_file import write_tensors
from divopd.store import Store
from doubles.hashing_learner import HashingLearner
from small_runs import config

EVERY = {"every": 3}


class Slow(dict[str, Any]):
    """Weights that a slow disk takes: whoever writes them waits first."""

    def __init__(self, weights: dict[str, Any], until: Event | None, seconds: float = 20) -> None:
        super().__init__(weights)
        self._until, self._seconds = until, seconds

    def __iter__(self) -> Iterator[str]:
        if self._until is not None:
            self._until.wait(self._seconds)
        return super().__iter__()


class Counting(HashingLearner):
    """Its only weight is a number, which every update raises in place."""

    def __init__(self, until: Event | None = None, seconds: float = 20) -> None:
        super().__init__()
        self.weight, self._slow = torch.zeros(1), (until, seconds)

    def weights(self) -> dict[str, torch.Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"weight": self.weight}

    def snapshot(self, dtype: str | None) -> dict[str, Any]:
        return Slow({"weight": self.weight.to(getattr(torch, dtype or "float32"), copy=True)}, *self._slow)


class Recorder:
    """A shelf that remembers what it was given, and may be away."""

    def __init__(self) -> None:
        self.given: list[tuple[int, float]] = []
        self.has: list[int] = []
        self.away = False

    def versions(self) -> list[int]:
        return self.has

    def take(self, version: int, weights: Any) -> bool:
        if self.away:
            return False
        self.given.append((version, float(weights["weight"])))
        self.has.append(version)
        return True


@pytest.fixture
def blocked() -> Iterator[Event]:
    """What lets a slow disk go on."""
    event = Event()
    yield event
    event.set()


def number_in(path: Path) -> float:
    return float(read_weights(path)["weight"])


def on_vllm(models: Path, **sections: Any) -> Config:
    return config(
        models,
        clock="live",
        student={"model": str(models / "student"), "engine": "vllm"},
        learner={"updates": 9, "compute": "bfloat16"},
        **sections,
    )


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_of_tensors_is_the_librarys_to_the_byte(tmp_path: Path) -> None:
    """All types, nothing and one number among the shapes; size and digest are those of the file."""
    tensors = {
        "b": torch.randn(3, 5),
        "a": torch.randn(7).bfloat16(),
        "layers.1": torch.arange(4),
        "none": torch.zeros(0, 3),
        "é": torch.randn(2, 2).double(),
        "one": torch.tensor(3.0),
        "half": torch.randn(3).half(),
        "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "truth": torch.tensor([True]),
        "turned": torch.randn(4, 2).T,
    }
    told = write_tensors(tmp_path / "ours", tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs")
    whole = (tmp_path / "ours").read_bytes()
    assert whole == (tmp_path / "theirs").read_bytes()
    assert told == {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    assert torch.equal(load_file(tmp_path / "ours")["turned"], tensors["turned"])


def test_a_published_folder_that_was_changed_is_refused(tmp_path: Path) -> None:
    """Nothing is read back when it is written: whoever reads it compares."""
    publish_weights(tmp_path, 4, {"weight": torch.ones(100)})
    assert verify(tmp_path / "000004")["number"] == 4
    file = tmp_path / "000004" / "weights.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    with pytest.raises(CheckpointError, match="sha256"):
        read_weights(tmp_path / "000004")


def test_a_version_in_bfloat16_fills_a_model_in_float32() -> None:
    """Every number is the rounded one; other types and shapes are refused as ever."""
    policy = TransformersPolicy.load(model_folder("embedded:student"))
    before = {name: tensor.clone() for name, tensor in named_tensors(policy.model).items()}
    rounded, whole = copied_weights(policy.model, "bfloat16"), copied_weights(policy.model, None)
    fill_weights(policy.model, rounded, source="a test")
    for name, tensor in named_tensors(policy.model).items():
        assert torch.equal(tensor, before[name].bfloat16().float())
        assert torch.equal(whole[name], before[name])  # a copy, which the change has left alone
    name = next(iter(rounded))
    with pytest.raises(CheckpointError, match=r"torch\.float16"):
        fill_weights(policy.model, rounded | {name: rounded[name].half()}, source="a test")


# ── beside ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_work_beside_is_done_in_order_and_only_what_may_be_skipped_is(blocked: Event) -> None:
    """While one is under way a newer piece takes the place of those that may be skipped, and of no other."""
    done: list[int] = []
    beside = Beside[int](lambda piece: (blocked.wait(20), done.append(piece)), room=3)
    beside.put(0, may_be_skipped=False)
    beside.put(1, may_be_skipped=True)
    beside.put(2, may_be_skipped=False)
    beside.put(3, may_be_skipped=True)
    beside.put(4, may_be_skipped=True)
    assert not beside.idle
    blocked.set()
    beside.settle()
    assert (done, beside.idle) == ([0, 2, 4], True)


def test_what_goes_wrong_beside_is_raised_at_the_next_call() -> None:
    """Once; what comes after is done."""
    done: list[int] = []

    def work(piece: int) -> None:
        if piece == 1:
            raise CheckpointError("no room")
        done.append(piece)

    beside = Beside[int](work)
    beside.put(1, may_be_skipped=False)
    with pytest.raises(CheckpointError, match="no room"):
        beside.settle()
    beside.put(2, may_be_skipped=False)
    beside.settle()
    assert done == [2]


# ── the ways ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_learner_goes_on_while_a_version_is_written(models: Path, tmp_path: Path, blocked: Event) -> None:
    """What is written is the version as it was published, though an update has changed the weights since."""
    settings, run, learner = config(models, clock="live"), RunFolder(tmp_path), Counting(blocked)
    way = FolderWay(settings, run, evaluated=dict)
    way.publish(0, learner)
    learner.weight += 7
    assert run.versions() == []
    blocked.set()
    way.settle()
    assert (run.versions(), number_in(run.weights_of(0))) == ([0], 0.0)


def test_a_disk_that_is_full_ends_the_learner(models: Path, tmp_path: Path) -> None:
    """At the next version or checkpoint: in a typed error, not in silence."""
    (tmp_path / "weights").write_text("a file where a folder is wanted")
    way = FolderWay(config(models, clock="live"), RunFolder(tmp_path), evaluated=dict)
    way.publish(0, Counting())
    with pytest.raises(CheckpointError, match="cannot be written"):
        way.settle()


@pytest.mark.parametrize("keep_last", [0, 2])
def test_with_a_shelf_only_what_lasts_is_written(models: Path, tmp_path: Path, keep_last: int) -> None:
    """Explorers get every version; files are those that are evaluated, and those that audits need."""
    settings = config(models, clock="live", evaluation=EVERY, learner={"updates": 9}, audits={"keep_last": keep_last})
    run, shelf, learner = RunFolder(tmp_path), Recorder(), Counting()
    way = ObjectStoreWay(settings, run, shelf, evaluated=dict)
    for version in range(8):
        way.publish(version, learner)
        way.settle()
        learner.weight += 1
    assert shelf.given == [(version, float(version)) for version in range(8)]
    assert run.versions() == ([0, 3, 5, 6, 7] if keep_last else [0, 3, 6])
    assert number_in(run.weights_of(6)) == 6.0


def test_versions_travel_in_the_type_in_which_the_engine_computes(models: Path, tmp_path: Path) -> None:
    """Half the bytes, on the way and on disk; but not where an audit computes with them."""
    for keep_last, dtype in ((0, torch.bfloat16), (1, torch.float32)):
        settings, run = on_vllm(models, audits={"keep_last": keep_last}), RunFolder(tmp_path / str(keep_last))
        way = FolderWay(settings, run, evaluated=dict)
        way.publish(0, Counting())
        way.settle()
        assert read_weights(run.weights_of(0))["weight"].dtype == dtype
    assert config(models, clock="live", audits={"keep_last": 0}).weights_dtype is None


def test_a_checkpoint_waits_for_what_an_evaluation_still_wants(models: Path, tmp_path: Path, blocked: Event) -> None:
    """A resume goes on after it and publishes nothing of before: the files must be there first."""
    settings = config(models, clock="live", evaluation=EVERY)
    begin_run(settings, tmp_path)
    run = RunFolder(tmp_path)
    with Store.open(tmp_path) as store:
        world = LiveWorld(Access(settings, store, WeightsFolder(run), is_over=lambda: False, folder=run), run)
        world.publish(0, Counting(blocked, 0.2))
        assert run.versions() == []
        world.write_state(world.state())
        assert run.versions() == [0]


def test_a_shelf_that_died_is_given_the_newest_version_again(models: Path, tmp_path: Path) -> None:
    """By a learner that waits for a batch, which explorers without weights would never play."""
    settings, shelf = config(models, clock="live", evaluation=EVERY), Recorder()
    now = [0.0]
    way = ObjectStoreWay(settings, RunFolder(tmp_path), shelf, evaluated=dict, clock=lambda: now[0])
    way.publish(1, Counting())
    way.settle()
    now[0] = 100.0
    shelf.has, shelf.away = [], True
    way.look()
    way.settle()
    assert len(shelf.given) == 1
    shelf.away = False
    way.look()  # too soon
    way.settle()
    assert len(shelf.given) == 1
    now[0] = 200.0
    way.look()
    way.settle()
    assert shelf.given == [(1, 0.0), (1, 0.0)]


def test_a_shelf_gives_out_the_newest_versions_and_those_of_the_folder(tmp_path: Path) -> None:
    """Two are in memory; an older one is read from its file, and one that is nowhere is told to be gone."""
    put: list[Arrays] = []
    shelf = Shelf(tmp_path, put=lambda arrays: put.append(arrays) or len(put))
    publish_weights(tmp_path / "weights", 0, {"weight": torch.zeros(1)})
    for version in (1, 2, 3):
        shelf.take(version, as_arrays({"weight": torch.full((1,), float(version))}))
    assert shelf.versions() == [0, 2, 3]
    assert shelf.fetch(3) == 3
    assert shelf.fetch(0) == 4  # it was put there now
    assert shelf.versions() == [0, 3]
    with pytest.raises(CheckpointError):
        shelf.fetch(1)


def test_an_explorer_never_goes_back_to_older_weights(models: Path, tmp_path: Path) -> None:
    """A learner that was killed comes to these again before it composes: what older ones play would be stale."""
    settings = config(models, clock="live")
    begin_run(settings, tmp_path)
    here: list[int] = []

    class Some(WeightsFolder):
        def versions(self) -> list[int]:
            return here

    with Store.open(tmp_path) as store:
        access = Access(settings, store, Some(RunFolder(tmp_path)), is_over=lambda: False)
        orders = LiveOrders(access, rollouts=None, student=None, examiner=None)  # pyright: ignore[reportArgumentType]
        wanted: Callable[[], int | None] = orders.wanted
        seen = []
        for versions in ([], [0, 4], [0, 2], [0, 2, 5]):
            here[:] = versions
            orders._looked = -1.0
            with suppress(StopIteration):
                seen.append(wanted())
    assert seen == [None, 4, 4, 5]
