"""Words of a run's evaluation tasks that its training rollouts never had."""

from collections.abc import Sequence
from itertools import groupby

from divopd.environments.words import words_in
from divopd.errors import StoreError
from divopd.report.words import words_of
from divopd.run.stored_config import stored_config
from divopd.store.views import StoreViews

EVENT = "evaluation_words"  # what an evaluation notes of its tasks
LOOKED_AT = 400  # training rollouts at most, from all over the run


def unseen_words(store: StoreViews) -> tuple[list[str], int]:
    """The words, sorted, and in how many training rollouts none of them was; nothing where that cannot be told."""
    noted = [event for _, kind, event in store.events() if kind == EVENT]
    words = words_of(store.path.parent, stored_config(store.path.parent))
    if not noted or words.missing:
        return [], 0
    left, looked_at = set(map(str, noted[-1]["words"])), 0
    for rollout in _spread(store.rollout_ids(), LOOKED_AT):
        if not left:
            return [], 0
        prompt = _last_prompt(store, rollout)
        looked_at += bool(prompt)
        for is_mark, piece in groupby(prompt, key=words.marks.__contains__):  # without marks, words would grow together
            left -= set() if is_mark else words_in(words.text(list(piece)))
    return (sorted(left), looked_at) if looked_at else ([], 0)


def _spread(items: Sequence[str], count: int) -> list[str]:
    """So many of them at most, evenly from the first on."""
    step = max(1.0, len(items) / count)
    return [items[int(place * step)] for place in range(min(len(items), count))]


def _last_prompt(store: StoreViews, rollout: str) -> Sequence[int]:
    """What stood before the last response, the history with it; nothing if its tokens were dropped."""
    try:
        return store.whole(store.turns_of(rollout)[-1]).prompt_ids
    except StoreError:
        return ()
