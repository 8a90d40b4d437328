"""A rollout to be read turn by turn: what was seen, what was answered, token by token, and what became of each turn."""

from collections.abc import Sequence
from typing import Any

from divopd.errors import StoreError
from divopd.prompts.style import PromptStyle
from divopd.report.fates import why
from divopd.report.words import Words
from divopd.store.journal import StoredTurn
from divopd.store.views import StoreViews
from divopd.turns import Turn
from divopd.validity import valid_mask, why_invalid

Json = dict[str, Any]
LONGEST_TEXT = 20_000  # characters of one observation


def read_rollout(store: StoreViews, rollout: str, *, words: Words, style: PromptStyle | None) -> Json:
    """A rollout with its texts. Turns of the teacher are no rows; runs that did not keep them have them in prompts."""
    with store.snapshot():
        told = why(store, rollout)
        taught = store.teacher_turns(rollout)
        rows = [_whole(store, turn) for turn in store.turns_of(rollout)]
    before: Turn | None = None
    for turn, row in zip(told["turns"], rows, strict=True):
        if row is not None:
            turn |= {"context": _context(row, before, words), **_response(row, words, style)}
        before = row
    calls = {call["turn"]: call for call in told.get("calls", ())}  # of an agent program
    for turn in told["turns"]:
        if (call := calls.get(turn["turn"])) is not None:
            turn |= {"call": call["sentence"], "action": call.get("action")}
    for turn, whole in zip(told["teacher_turns"], taught, strict=True):
        turn |= {"response": words.text(whole.response_ids)[:LONGEST_TEXT], "seen": whole.seen[:LONGEST_TEXT]}
    known = next((row for row in rows if row is not None), None)
    outcome = {name: getattr(known, name, None) for name in ("success", "reward", "rollout_turns")}
    return told | outcome | {"words_missing": words.missing}


def _whole(store: StoreViews, turn: StoredTurn) -> Turn | None:
    """The turn with its tokens; None if settle has dropped them."""
    if store.is_settled(turn):
        return None
    try:
        return store.whole(turn)
    except StoreError:  # dropped a moment ago, or damaged: `divopd audit ledger` tells which
        return None


def _context(row: Turn, before: Turn | None, words: Words) -> Json:
    """What is new in the prompt since the turn before, in pieces: control marks, texts, responses of the teacher."""
    prompt = list(row.prompt_ids)
    past = [*before.prompt_ids, *before.response_ids] if before else []
    shared = _shared(past, prompt)
    if before and not shared and prompt[: len(before.prompt_ids)] == list(before.prompt_ids):
        shared = len(before.prompt_ids)  # a program tells the answer in its own way
    continued, new = shared > 0, prompt[shared:]
    opening = _opening(prompt, words)
    pieces: list[Json] = []
    text: list[int] = []
    helped = False
    for place, id_ in enumerate(new):
        if id_ not in words.marks:
            text.append(id_)
            continue
        pieces += _piece("teacher" if helped else "text", text, words)
        pieces.append({"kind": "mark", "text": words.pieces([id_])[0]})
        text = []
        # a response that stands in the prompt and is none of the student's before it was the teacher's
        helped = continued and new[place : place + len(opening)] == opening and place + len(opening) < len(new)
    pieces += _piece("text", text, words)
    return {"pieces": pieces, "continued": continued, "tokens": len(prompt), "truncated": row.prompt_truncated}


def _shared(past: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens of the prompt are the end of the past; a prompt that was cut begins somewhere in it."""
    starts = range(len(past)) if past else ()
    return next((len(past) - start for start in starts if past[start:] == prompt[: len(past) - start]), 0)


def _opening(prompt: Sequence[int], words: Words) -> list[int]:
    """The marks with which every prompt asks for a response: from its last control token on."""
    for place in range(len(prompt) - 1, -1, -1):
        if prompt[place] in words.marks:
            return list(prompt[place:])
    return []


def _piece(kind: str, ids: Sequence[int], words: Words) -> list[Json]:
    text = words.text(ids)
    return [{"kind": kind, "text": text[:LONGEST_TEXT], "left_out": max(0, len(text) - LONGEST_TEXT)}] if text else []


def _response(row: Turn, words: Words, style: PromptStyle | None) -> Json:
    text = words.text(row.response_ids)
    return {
        "pieces": words.pieces(row.response_ids),
        "student": _listed(row.student_logprobs),
        "teacher": _listed(row.teacher_logprobs),
        "valid": list(valid_mask(row)) if why_invalid(row) is None else [0] * len(row.response_ids),
        "action": style.parse(text) if style and not words.missing else None,
    }


def _listed(numbers: Sequence[float] | None) -> list[float] | None:
    return None if numbers is None else list(numbers)
