"""The live clock without processes: what a learner waits for, what is noted of a teacher, what is left of ranks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from divopd.config import Config
from divopd.errors import InputError
from divopd.methods import make_composer
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.weights import copied_weights
from divopd.pipeline.access import Access, WeightsFolder
from divopd.pipeline.begin import begin_run
from divopd.pipeline.live import LiveWorld
from divopd.pipeline.models import load_student
from divopd.pipeline.processes import LiveRun
from divopd.pipeline.roles import evaluate, teach
from divopd.pipeline.wishes import Stopped, Wishes
from divopd.records import Observers
from divopd.run.folder import RunFolder
from divopd.store import Store
from divopd.turns import Rollout, Turn
from doubles.listener import Listener
from small_runs import config


def rollout(name: str, *, turns: int, scored: bool = True, version: int = 0) -> Rollout:
    """One that is valid, or one that nobody can train on."""
    rows = [
        Turn(
            name,
            number,
            task="t",
            version=version,
            prompt_ids=[5, 6],
            response_ids=[7],
            student_logprobs=[-1.0],
            teacher_logprobs=[-2.0] if scored else None,
            action_mask=[1],
        )
        for number in range(turns)
    ]
    return Rollout(name, tuple(rows))


@pytest.fixture
def opened(models: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[Store, LiveWorld]]]:
    """A store and the world of its learner, whose batches have five rows."""
    stores: list[Store] = []

    def opened(**learner: object) -> tuple[Store, LiveWorld]:
        settings = config(models, clock="live", learner={"updates": 3, **learner}, composer={"batch_size": 5})
        begin_run(settings, tmp_path)
        stores.append(Store.open(tmp_path))
        run = RunFolder(tmp_path)
        access = Access(settings, stores[0], WeightsFolder(run), is_over=lambda: False, folder=run)
        return stores[0], LiveWorld(access, run)

    yield opened
    for store in stores:
        store.close()


def test_a_learner_waits_for_a_whole_batch(opened: Callable[..., tuple[Store, LiveWorld]]) -> None:
    """Not for less while there is time, and not for more."""
    store, world = opened(max_wait_s=600)
    arrivals = iter([rollout("a", turns=3), None, rollout("b", turns=3)])

    def heed() -> None:
        if (arrived := next(arrivals)) is not None:  # a fourth look would be one too many
            store.put(arrived)

    world.heed = heed
    composer = make_composer("divopd", batch_size=5)
    world.wait(composer, update=0)
    assert store.rows(composer, update=0) == 6


def test_after_the_longest_wait_a_few_rows_are_enough(opened: Callable[..., tuple[Store, LiveWorld]]) -> None:
    store, world = opened(max_wait_s=0.01)
    store.put(rollout("a", turns=3))
    waited = world.wait(make_composer("divopd", batch_size=5), update=0)
    assert waited.seconds > 0.01
    assert waited.starved_s == 0


@pytest.mark.parametrize("arriving", [0, 4, 5])
def test_a_wait_that_leads_nowhere_ends(opened: Callable[..., tuple[Store, LiveWorld]], arriving: int) -> None:
    """When a batch of turns has arrived meanwhile and none can be trained; what came before does not count."""
    store, world = opened(max_wait_s=0.01)
    store.put(rollout("before", turns=9, scored=False))
    looks = iter(range(6))

    def heed() -> None:
        look = next(looks, None)
        if look is None:
            raise Stopped
        if look == 2 and arriving:
            store.put(rollout("later", turns=arriving, scored=False))

    world.heed = heed
    with pytest.raises(InputError if arriving == 5 else Stopped):
        world.wait(make_composer("divopd", batch_size=5), update=0)


@pytest.mark.parametrize(("version", "ends"), [(0, False), (5, True)])
def test_what_older_weights_began_does_not_end_a_wait(
    opened: Callable[..., tuple[Store, LiveWorld]], version: int, ends: bool
) -> None:
    """A role was away, and what it left is stale: the next rollouts need not be. With the newest weights they are."""
    store, world = opened(max_wait_s=0.01)
    for one in (0, 5):
        (world.run.weights_of(one)).mkdir(parents=True, exist_ok=True)
    looks = iter(range(6))

    def heed() -> None:
        look = next(looks, None)
        if look is None:
            raise Stopped
        if look == 2:
            store.put(rollout("later", turns=9, scored=False, version=version))

    world.heed = heed
    with pytest.raises(InputError if ends else Stopped):
        world.wait(make_composer("divopd", batch_size=5), update=0)


@pytest.mark.parametrize(
    ("bound", "unscored", "ends"), [(3, False, True), (3, True, False), (4, False, False), (None, False, False)]
)
def test_a_wait_for_explorers_that_pause_ends(
    opened: Callable[..., tuple[Store, LiveWorld]], bound: int | None, unscored: bool, ends: bool
) -> None:
    """Fewer turns than a batch wait, none can be trained, and for so many explorers pause: nothing would ever arrive.

    Not while a teacher has something to score, nor while explorers play.
    """
    store, world = opened(max_wait_s=0.01)
    explorer = world.config.explorer.model_copy(update={"max_backlog": bound})
    world.config = world.config.model_copy(update={"explorer": explorer})
    store.put(rollout("before", turns=3, scored=False))
    if unscored:
        store.offer(rollout("waiting", turns=2, scored=False), generated_tokens=2)
    looks = iter(range(6))

    def heed() -> None:
        if next(looks, None) is None:
            raise Stopped

    world.heed = heed
    with pytest.raises(InputError if ends else Stopped, match="explorers pause because 3 turns wait" if ends else None):
        world.wait(make_composer("divopd", batch_size=5), update=0)


def test_what_arrives_at_the_last_moment_is_looked_at(opened: Callable[..., tuple[Store, LiveWorld]]) -> None:
    """A batch that comes between the last look and the limit is trained; it does not end the run."""
    store, world = opened(max_wait_s=0.01)
    world.run.weights_of(0).mkdir(parents=True, exist_ok=True)
    coming = iter([None, rollout("in-time", turns=9)])

    def heed() -> None:
        if (one := next(coming, None)) is not None:
            store.put(one)

    world.heed = heed
    world.wait(make_composer("divopd", batch_size=5), update=0)
    assert store.rows(make_composer("divopd", batch_size=5), update=0) >= 5


def test_a_teacher_that_is_away_is_noted_once(models: Path, tmp_path: Path) -> None:
    """Its rollout waits in the store, however often it is asked; when the teacher stops, it holds nothing."""
    teacher = {"url": "http://127.0.0.1:9/v1", "model": "away", "timeout_s": 1}
    settings: Config = config(models, clock="live", teacher=teacher)
    begin_run(settings, tmp_path)
    with Store.open(tmp_path) as store:
        store.offer(rollout("a", turns=2, scored=False), generated_tokens=2)
        looks = iter([False] * 9 + [True])
        access = Access(settings, store, WeightsFolder(RunFolder(tmp_path)), is_over=lambda: next(looks))
        access.open_store = lambda: Store.open(tmp_path)
        with pytest.raises(Stopped):
            teach(access)
        assert [one.id for one in store.unscored(9)] == ["a"]
        assert store.renew("teacher-0", seconds=1) == 0
    with Store.open_read_only(tmp_path) as store:
        [(_, kind, event)] = store.events(after=0)
    assert (kind, event["who"], event["by"]) == ("teacher_away", "127.0.0.1:9", "teacher-0")


class Published:
    """What a learner publishes: the student as it is."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self.model = policy.model

    def snapshot(self, dtype: str | None) -> dict[str, Any]:
        return copied_weights(self.model, dtype)


def test_an_evaluator_of_its_own_plays_what_is_due(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `evaluation.share: null`: every third version, once, and then it ends; it gives way to the others."""
    settings = config(models, clock="live", learner={"updates": 3}, evaluation={"share": None, "tasks": 1})
    begin_run(settings, tmp_path)
    run, gave_way = RunFolder(tmp_path), list[int]()
    monkeypatch.setattr("os.nice", gave_way.append)
    with Store.open(tmp_path) as store:
        access = Access(settings, store, WeightsFolder(run), is_over=lambda: False, folder=run)
        world, learner = LiveWorld(access, run), Published(load_student(settings))
        for version in range(4):
            world.publish(version, learner)  # pyright: ignore[reportArgumentType]
        evaluate(access)
        assert sorted(store.evaluations()) == [0, 3]
    assert run.versions() == [0, 1, 2, 3]
    assert gave_way == [15]


class Ended:
    """A worker that has done its work."""

    def poll(self) -> int:
        return 0

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Watched(LiveRun):
    """Starts nobody, and sees where ranks of before would still meet."""

    def start(self, name: str) -> Ended:
        self.deaths[name] += 10 * self.folder.rendezvous.exists()
        return Ended()


def test_ranks_never_meet_where_those_of_before_did(models: Path, tmp_path: Path) -> None:
    """The file at which they meet goes before a learner starts, and not when others do."""
    settings = config(models, clock="live")
    begin_run(settings, tmp_path)
    run = Watched(settings, tmp_path, observer=Observers(), wishes=Wishes())
    run.folder.rendezvous.write_text("of before")
    run.run()
    assert run.deaths["preflight"] == 10
    assert {run.deaths[name] for name in run.names} == {0}


class Working:
    """A worker that is at work for some looks and then has this exit code."""

    def __init__(self, looks: int, code: int) -> None:
        self.looks, self.code = looks, code

    def poll(self) -> int | None:
        self.looks -= 1
        return None if self.looks >= 0 else self.code

    def terminate(self) -> None:
        self.looks = 0

    def kill(self) -> None:
        self.looks = 0


class Troubled(LiveRun):
    """Its first teacher dies; all others do their work."""

    def start(self, name: str) -> Working:
        self.started.append(name)
        if name == "teacher" and self.started.count(name) == 1:
            return Working(0, 7)
        return Working({"preflight": 0, "learner": 5, "explorer-0": 5}.get(name, 10**6), 0)

    @property
    def started(self) -> list[str]:
        return self.__dict__.setdefault("names_started", [])


def test_a_role_that_died_is_started_again_and_told_of(models: Path, tmp_path: Path) -> None:
    settings, listener = config(models, clock="live"), Listener()
    begin_run(settings, tmp_path)
    run = Troubled(settings, tmp_path, observer=listener, wishes=Wishes())
    run.run()
    assert listener.sentences == ["the teacher died (exit code 7) and is started again"]
    assert run.started == ["preflight", *run.names, "teacher"]
