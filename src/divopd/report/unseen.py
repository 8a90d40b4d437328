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
        prompts = _prompts(store, rollout)
        looked_at += bool(prompts)
        for prompt in prompts:
            for is_mark, piece in groupby(prompt, key=words.marks.__contains__):  # or words would grow together
                left -= set() if is_mark else words_in(words.text(list(piece)))
    return (sorted(left), looked_at) if looked_at else ([], 0)


def _spread(items: Sequence[str], count: int) -> list[str]:
    """So many of them at most, evenly from the first on."""
    step = max(1.0, len(items) / count)
    return [items[int(place * step)] for place in range(min(len(items), count))]


def _prompts(store: StoreViews, rollout: str) -> list[Sequence[int]]:
    """What stood before the first response, and before the last one with the history; none if tokens were dropped.

    A long history is cut at its front, where the task is named: the last prompt alone would not have it.
    """
    turns = store.turns_of(rollout)
    try:
        return [store.whole(turn).prompt_ids for turn in ((turns[0], turns[-1]) if len(turns) > 1 else turns)]
    except StoreError:
        return []
