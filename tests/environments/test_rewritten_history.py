"""Histories that templates and programs rewrite between two calls: every row is what the student read and wrote."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from divopd.explorer import rows_of
from divopd.models.tiny import CHAT_TEMPLATE
from program_desk import TOOL, Desk, Seat, make_student

THOUGHT = "<think>which one then</think>"
# as models that think have it: what was thought in earlier turns is not shown again
FORGETFUL = CHAT_TEMPLATE.replace("message.content + '<|end|>'", "message.content.split('</think>')[-1] + '<|end|>'")
CALL = '<tool_call>\n{"arguments":{"number":3},   "name":"open_door"}\n</tool_call>'  # nobody writes it like this again
TOLD = '<tool_call>\n{"name": "open_door", "arguments": {"number": 3}}\n</tool_call>'
QUESTION, SUMMARY = "which door", "door 3 was opened; go on"


def ask(seat: Seat, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = json.dumps({"messages": messages, "tools": [TOOL]}).encode()
    request = urllib.request.Request(f"{seat.base_url}/chat/completions", body, {"Authorization": f"Bearer {seat.key}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def test_a_history_that_is_told_otherwise_corrupts_no_row(tmp_path: Path) -> None:
    """A thought that the template strips, a call spelled anew, a summary: no prompt begins with what came before."""
    student = make_student()
    assert FORGETFUL != CHAT_TEMPLATE
    student.tokenizer.chat_template = FORGETFUL
    with Desk(tmp_path, engine=student) as desk:
        desk.student.script.extend([f"{THOUGHT}{CALL}", "open it", "say which"])
        seat, history = desk.sit("a"), [{"role": "user", "content": QUESTION}]
        said = ask(seat, history)
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "it is open"}
        history += [said, result]
        history.append(ask(seat, history))
        ask(seat, [{"role": "user", "content": SUMMARY}])  # a summary of all that
        seat.leave(success=True)
        played = desk.ended()
        records = [record for record in desk.attempts()[0].calls.values() if record is not None]
        rows = rows_of(played, name="r", version=5)
    assert said["content"] == THOUGHT
    assert rows is not None
    assert [row.turn for row in rows.turns] == [0, 1, 2]
    texts = [desk.codec.decode(row.prompt_ids) for row in rows.turns]
    offer = texts[0].removesuffix(QUESTION)
    assert texts[1:] == [f"{offer}{QUESTION}\n{TOLD}<tool_response>\nit is open\n</tool_response>", f"{offer}{SUMMARY}"]
    for row, record, read, before in zip(rows.turns, records, desk.student.asked, [None, *rows.turns], strict=False):
        assert row.prompt_ids == record["prompt_ids"] == read["prompt"]
        assert row.response_ids == record["completion_ids"]
        ids = [*row.prompt_ids, *row.response_ids]
        [[fresh]] = student.score([ids], [[(len(row.prompt_ids), len(ids))]])
        np.testing.assert_allclose(row.student_logprobs or (), fresh, atol=1e-5)
        assert before is None or row.prompt_ids[: before.tokens] != [*before.prompt_ids, *before.response_ids]
