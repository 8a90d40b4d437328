"""Rollouts of agent programs as a page and `divopd why` tell them."""

from pathlib import Path
from typing import Any

from divopd.report.fates import why
from divopd.report.page.reading import read_rollout
from divopd.report.words import Words
from divopd.store import Store
from divopd.store.views import StoreViews
from divopd.turns import Rollout, Turn

ROLLOUT = 7
CALL: dict[str, Any] = {
    "agent": "main",
    "actor": "student",
    "prompt_ids": [1, 2, 3],
    "completion_ids": [4, 5],
    "first_version": 0,
    "asked": {},
    "applied": {},
    "tools": [],
    "parsed": "unparsed",
    "action": "5",
    "finish": "length",
    "streamed": False,
}


def stored(folder: Path, *prompts: list[int], **ended: Any) -> StoreViews:
    """A rollout with a turn for each prompt; every response is 4 5."""
    rows = [
        Turn(
            rollout=f"r{ROLLOUT:06d}",
            turn=number,
            task="t",
            version=0,
            prompt_ids=prompt,
            response_ids=[4, 5],
            student_logprobs=[-1.0, -1.0],
            teacher_logprobs=[-1.5, -1.0],
            action_mask=[1, 1],
        )
        for number, prompt in enumerate(prompts)
    ]
    with Store.create(folder / "store.db") as store:
        attempt = store.begin_attempt(ROLLOUT, {"task": "t"})
        for number in range(len(prompts)):
            store.intend_call(ROLLOUT, attempt, number, {})
            store.record_call(ROLLOUT, attempt, number, CALL)
        if ended:
            store.end_attempt(ROLLOUT, attempt, ended)
        store.put(Rollout(f"r{ROLLOUT:06d}", tuple(rows)), available_at=0)
    return StoreViews.open(folder)


def shown(store: StoreViews) -> list[tuple[bool, str]]:
    read = read_rollout(store, f"r{ROLLOUT:06d}", words=Words(None), style=None)
    return [(turn["context"]["continued"], turn["context"]["pieces"][0]["text"]) for turn in read["turns"]]


def test_only_what_is_new_in_a_prompt_is_shown(tmp_path: Path) -> None:
    """Also where the program tells the answer in its own way; a history that it rewrites is shown whole."""
    with stored(tmp_path, [1, 2, 3], [1, 2, 3, 9, 8], [1, 2, 3, 9, 8, 4, 5, 7], [1, 2, 6]) as store:
        assert shown(store) == [(False, "1 2 3"), (True, "9 8"), (True, "7"), (False, "1 2 6")]


def test_why_tells_how_the_program_ended(tmp_path: Path) -> None:
    """What was refused, how many more, and its last words; a call's end is told in words."""
    ended = {
        "ended": "it ended with exit code 0",
        "refused": ["n is 2; expected one answer a call"],
        "output": "one\nlast words\n",
        "counts": {"refused": 3},
    }
    with stored(tmp_path, [1, 2, 3], **ended) as store:
        told = why(store, f"r{ROLLOUT:06d}")
    assert told["program"] == [
        "the program: it ended with exit code 0",
        "a call was refused: n is 2; expected one answer a call",
        "2 calls more were refused",
        "it printed last: last words",
    ]
    assert told["calls"][0]["sentence"].endswith(
        "0 tools offered, a call that does not parse, cut at its limit of tokens, delivered"
    )


def test_why_tells_of_a_program_that_was_broken_off_from_outside(tmp_path: Path) -> None:
    """Whoever played it died: nobody knows how it would have ended."""
    with stored(tmp_path, [1, 2, 3]) as store:
        assert why(store, f"r{ROLLOUT:06d}")["program"] == [
            "the program was broken off with the process that had started it"
        ]
