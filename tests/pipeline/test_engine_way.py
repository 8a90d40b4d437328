"""Weights sent into explorers' engines: what is done in which order, and what happens when somebody is gone."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from test_publishing import Recorder

from divopd.config import Config, load_config
from divopd.errors import InputError, TransferError
from divopd.learner import Learner
from divopd.pipeline.engine_way import EngineWay, Listener
from divopd.pipeline.shelf import ObjectStoreWay
from divopd.pipeline.switchboard import BoardClient, Switchboard
from divopd.run.folder import RunFolder
from doubles.hashing_learner import HashingLearner
from small_runs import config


class Engine:
    """An engine that notes what it is asked; it may break at a step."""

    def __init__(self, breaks: str | None = None) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.version: int | None = None
        self.breaks = breaks

    def do(self, step: str, given: dict[str, Any]) -> None:
        if step == self.breaks:
            raise RuntimeError("NCCL error")
        self.asked.append((step, given))
        if step == "finish":
            self.version = given["version"]


class Explorer:
    """An explorer at work: it listens between its tokens."""

    def __init__(self, board: Switchboard, name: str, engine: Engine, *, workers: int = 1) -> None:
        self.engine, self.heard, self.died = engine, list[int](), False
        self._listener = Listener(board, engine, name=name, workers=workers)
        self._over = Event()
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(0.002):
            try:
                version = self._listener.look()
            except TransferError:
                self.died = True
                return
            if version is not None:
                self.heard.append(version)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        for _ in range(5000):
            if holds():
                return
            time.sleep(0.002)
        raise AssertionError("it never came to pass")

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Link:
    """As vLLM's trainer end: it joins the engines, and sends in two pieces."""

    def __init__(self, client: BoardClient, workers: int) -> None:
        self._client, self.closed = client, False
        client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 1 + workers})

    def send(self) -> None:
        self._client.start_weight_update()
        for piece in ("a", "b"):
            self._client.update_weights({"names": [piece]})
        self._client.finish_weight_update()

    def close(self) -> None:
        self.closed = True


class OneWord(HashingLearner):
    """Weights that a shelf can note."""

    def snapshot(self, dtype: str | None) -> dict[str, Any]:
        return {"weight": 1.0}


class Stage:
    """A learner's end, a board and a shelf."""

    def __init__(self, settings: Config, folder: Path) -> None:
        self.board, self.shelf, self.told, self.explorers = Switchboard(), Recorder(), list[str](), list[Explorer]()
        store = ObjectStoreWay(settings, RunFolder(folder), self.shelf, evaluated=dict)
        self.links = 0

        def connect(_: Learner, client: BoardClient, workers: int) -> Link:
            self.links += 1
            return Link(client, workers)

        self.way = EngineWay(store, self.board, connect=connect, synced=lambda _: True, tells=self.told.append)

    def explorer(self, name: str, engine: Engine, *, workers: int = 1) -> Explorer:
        self.explorers.append(Explorer(self.board, name, engine, workers=workers))
        return self.explorers[-1]

    def publish(self, version: int) -> None:
        self.way.publish(version, OneWord())
        self.way.settle()


@pytest.fixture
def stage(models: Path, tmp_path: Path) -> Iterator[Stage]:
    settings = config(
        models, clock="live", evaluation={"every": 99}, learner={"updates": 99}, audits={"keep_last": 0}
    )  # nothing is written of versions 1 to 98
    made = Stage(settings, tmp_path)
    yield made
    for explorer in made.explorers:
        explorer.end()


def steps(engine: Engine) -> list[str]:
    return [step for step, _ in engine.asked]


def test_engines_take_a_version_together_and_are_joined_once(stage: Stage) -> None:
    """Each has its own place in the group; a version is stamped; nothing lies on the shelf."""
    one, two = Engine(), Engine()
    stage.explorer("explorer-0", one, workers=2)
    stage.explorer("explorer-1", two)
    stage.publish(1)
    stage.publish(2)
    whole = ["start", "update", "update", "finish"]
    assert steps(one) == steps(two) == ["begin", *whole, *whole]
    assert [engine.asked[0][1] for engine in (one, two)] == [
        {"rank_offset": 1, "world_size": 4},
        {"rank_offset": 3, "world_size": 4},
    ]
    for explorer in stage.explorers:
        explorer.wait_until(lambda heard=explorer.heard: heard == [1, 2])
    assert (stage.links, stage.shelf.given, stage.told) == (1, [], [])


def test_without_engines_a_version_goes_to_the_shelf(stage: Stage) -> None:
    """As at the start, when explorers are still loading; the next one is sent."""
    stage.publish(1)
    engine = Engine()
    stage.explorer("explorer-0", engine)
    stage.publish(2)
    assert [version for version, _ in stage.shelf.given] == [1]
    assert engine.version == 2


@pytest.mark.parametrize("step", ["begin", "start", "update", "finish"])
def test_an_engine_that_fails_costs_the_way_of_one_version(stage: Stage, step: str) -> None:
    """It goes to the shelf, and the learner says so; an engine with half a version is thrown away."""
    broken, whole = Engine(breaks=step), Engine()
    bad, good = stage.explorer("explorer-0", broken), stage.explorer("explorer-1", whole)
    stage.publish(1)
    assert [version for version, _ in stage.shelf.given] == [1]
    assert "explorer-0: NCCL error" in stage.told[0]
    half = step in ("update", "finish")
    if half:
        bad.wait_until(lambda: bad.died)
    new = Engine()
    for explorer in (bad, good):
        explorer.end()
    stage.explorer("explorer-0", new)
    stage.explorer("explorer-1", new)
    stage.publish(2)
    assert (new.version, stage.links) == (2, 2)


def test_whoever_is_started_anew_finds_the_newest_version_on_the_shelf(stage: Stage) -> None:
    """The learner waits for a batch, and would wait for ever if nobody could play with its weights."""
    first = stage.explorer("explorer-0", Engine())
    stage.publish(5)
    first.end()
    stage.way.look()
    stage.way.settle()
    assert stage.shelf.given == []
    stage.explorer("explorer-0", Engine())
    stage.way.look()
    stage.way.look()
    stage.way.settle()
    assert [version for version, _ in stage.shelf.given] == [5]


def test_an_engine_that_waits_for_the_rest_of_a_version_is_thrown_away() -> None:
    """Its learner was killed: nobody will tell it."""
    board, now = Switchboard(), [0.0]
    listener = Listener(board, Engine(), name="explorer-0", workers=1, clock=lambda: now[0])
    board.order("start", {"explorer-0": {}})
    assert listener.look() is None
    now[0] = 100.0
    assert listener.look() is None
    now[0] = 200.0
    with pytest.raises(TransferError, match="did not come within 120 s"):
        listener.look()


def test_a_learner_waits_no_longer_than_its_limit_for_an_engine() -> None:
    """And says of whom it heard nothing; one that was started again is noticed at once."""
    board = Switchboard()
    for name in ("explorer-0", "explorer-1"):
        board.join(name, 1)
    client = BoardClient(board, board.members(), limit_s=1.0, sleep=lambda _: None)
    with pytest.raises(TransferError, match=r"\(start\): nothing was heard of explorer-0, explorer-1 for 1 s"):
        client.start_weight_update()
    rejoin: Callable[[float], None] = lambda _: board.join("explorer-1", 1)  # noqa: E731
    client = BoardClient(board, board.members(), limit_s=1.0, sleep=rejoin)
    with pytest.raises(TransferError, match="explorer-1 was started again"):
        client.update_weights({"names": []})


def test_what_does_not_go_with_a_way_is_refused_by_name() -> None:
    """Whether there is a cluster, and what vLLM's transfer asks of explorers; the machine's usual way is ray."""
    sent = ["explorer.versions=turn", "evaluation.share=null"]
    assert load_config("webshop-7b/divopd").weights_way == "ray"
    assert load_config("webshop-7b/divopd", ["weights.way=nccl", *sent]).weights_backend == "nccl"
    for overrides, words in (
        (["weights.way=nccl", sent[0]], r"evaluation\.share is 0\.5; expected null with weights\.way: nccl"),
        (["weights.way=nccl", sent[1]], r"explorer\.versions is rollout; expected turn"),
        (["weights.way=ipc", *sent], r"learner\.ranks is 2; expected 1 with weights\.way: ipc"),
        (["weights.way=ray", "cluster=null"], r"there is no cluster; expected folder"),
    ):
        with pytest.raises(InputError, match=words):
            load_config("webshop-7b/divopd", overrides)
