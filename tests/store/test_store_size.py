"""A store that forgets tokens stops growing: pages of settled turns are used again, also of those never trained."""

from pathlib import Path
from random import Random

from divopd.methods import make_composer
from divopd.store import Store
from divopd.turns import Rollout, Turn

TOKENS = 2_000  # of a prompt
TURNS = 4  # of a rollout


def rollout(number: int, *, version: int, source: Random) -> Rollout:
    """One whose tokens do not shrink when they are packed."""
    words = {"response_ids": [1], "student_logprobs": [-1.0], "teacher_logprobs": [-2.0], "action_mask": [1]}
    turns = [
        Turn(f"r{number}", turn, "task", version, prompt_ids=[source.randrange(2**31) for _ in range(TOKENS)], **words)
        for turn in range(TURNS)
    ]
    return Rollout(f"r{number}", tuple(turns))


def size_after(folder: Path, *, settles: bool) -> list[int]:
    """Bytes of the store after 10 and after 40 updates; of three rollouts that arrive for each, one is trained."""
    source, sizes = Random(0), []
    composer = make_composer("divopd", batch_size=TURNS, cap=TURNS, max_staleness=1, max_pending_age=1)
    with Store.create(folder / "store.db", synchronous="NORMAL") as store:
        epoch = store.begin_learner()
        for update in range(40):
            for place in range(3):
                store.put(rollout(3 * update + place, version=update, source=source))
            store.compose(composer, update=update, epoch=epoch)
            store.acknowledge(update, epoch=epoch)
            if settles:
                store.settle(update, epoch=epoch)
            if update in (9, 39):
                store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                sizes.append(store.path.stat().st_size)
    return sizes


def test_a_store_that_settles_stops_growing(tmp_path: Path) -> None:
    """30 more updates of three rollouts each: a store that keeps its tokens has four times the size, one that settles
    has hardly more than before, though two of three rollouts expired."""
    (tmp_path / "keeps").mkdir()
    (tmp_path / "settles").mkdir()
    early, late = size_after(tmp_path / "keeps", settles=False)
    assert late > 3.5 * early
    early, late = size_after(tmp_path / "settles", settles=True)
    assert late < 1.3 * early
