"""Agent programs whose student is a real vLLM, and vLLM's parsers of tool calls.

.venv-vllm/bin/python -m pytest -m slow tests/models/test_vllm_programs.py
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch", reason="for want of the extra train")
import torch

import door_agent
from divopd.audits.ledger import audit_ledger
from divopd.errors import InputError, UnknownNameError
from divopd.explorer import Played, rows_of
from divopd.models.tiny import TinySize, build_model, build_tokenizer, save_model
from divopd.models.transformers_policy import TransformersPolicy
from divopd.models.vllm_policy import VllmPolicy
from divopd.prompts import Codec
from divopd.prompts.chat import Chat
from divopd.store import Store, program_figures, read_attempts
from program_desk import TOOL, Desk, Seat, wait_for
from vllm_engines import give_back

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of vLLM and of what it imports
    pytest.mark.skipif(find_spec("vllm") is None, reason="for want of vLLM"),
]
SIZE = TinySize(hidden=64, layers=2, heads=2, key_value_heads=2, feed_forward=64, context=2048)
TOLERANCE = 1e-4  # nats, in float32
COOL = 0.6  # the sampling temperature: log probabilities are those of temperature 1 all the same
ASK = [{"role": "user", "content": "which door"}]
CALL = '<tool_call>\n{"name": "open_door", "arguments": {"number": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student and a teacher of random weights, with one tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer(["open the door and say which number it has left right win turn"] * 2)
    for seed, name in enumerate(("student", "teacher")):
        save_model(folder / name, build_model(tokenizer, seed=seed, size=SIZE), tokenizer)
    return folder


@pytest.fixture(scope="module")
def desk(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    engine = VllmPolicy(models / "student", dtype="float32", context=1500, sequences=4)
    folder = tmp_path_factory.mktemp("desk")
    with Desk(folder, places=3, engine=engine, parser="vllm:hermes", temperature=COOL, max_prompt_tokens=1000) as desk:
        desk.sit("c").leave()  # it listens from the first program on
        desk.ended()
        yield desk
    give_back()


def client_of(seat: Seat) -> Any:
    openai = pytest.importorskip("openai", reason="for want of the extra dev")
    return openai.OpenAI(base_url=seat.base_url, api_key=seat.key, max_retries=0, timeout=120)


def ended(desk: Desk, number: int) -> Played:
    wait_for(lambda: any(one.start.number == number for one in desk.over))
    [played] = [one for one in desk.over if one.start.number == number]
    return played


def check_rows(desk: Desk, models: Path, played: Played) -> list[dict[str, Any]]:
    """Recorded ids are those of the turns, and the model in torch finds the log probabilities again."""
    reference = TransformersPolicy.load(models / "student")
    [attempt] = desk.attempts(played.start.number)
    assert attempt.is_complete
    records = [record for record in attempt.calls.values() if record is not None]
    assert len(records) == len(played.turns) > 0
    for record, turn in zip(records, played.turns, strict=True):
        prompt, answer = record["prompt_ids"], record["completion_ids"]
        assert (prompt, answer) == (list(turn.prompt.ids), list(turn.response.ids))
        [[fresh]] = reference.score([prompt + answer], [[(len(prompt), len(prompt) + len(answer))]])
        np.testing.assert_allclose(record["logprobs"], fresh, atol=TOLERANCE)
        assert record["mask"] == [0] * len(prompt) + [1] * len(answer)
        assert (record["first_version"], record["last_version"]) == (5, 5)
        assert record["applied"]["temperature"] == COOL
    assert rows_of(played, name="r", version=5) is not None
    return records


def test_calls_are_answered_by_vllm_and_worth_what_a_fresh_pass_says(desk: Desk, models: Path) -> None:
    """Plain, streamed, with tools, and eight at once from two programs: at the plain distribution of its weights."""
    one, other = desk.sit("a", number=1), desk.sit("b", number=2)
    first, second = client_of(one), client_of(other)
    plain = first.chat.completions.create(model="m", messages=ASK, temperature=0)
    pieces = list(first.chat.completions.create(model="m", messages=ASK, stream=True, max_tokens=3))
    offered = first.chat.completions.create(model="m", messages=ASK, tools=[TOOL])
    heard: dict[int, str] = {}

    def ask(number: int) -> None:
        client, messages = (first, second)[number % 2], [{"role": "user", "content": f"door {number}"}]
        heard[number] = client.chat.completions.create(model="m", messages=messages).choices[0].message.content

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seat, client in ((one, first), (other, second)):
        seat.leave(success=True)
        client.close()
    played = [ended(desk, number) for number in (1, 2)]
    records = [check_rows(desk, models, each) for each in played]
    assert [len(each) for each in records] == [7, 4]
    assert plain.choices[0].message.content == desk.codec.decode(played[0].turns[0].response.ids)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == desk.codec.decode(
        records[0][1]["completion_ids"]
    )
    assert len(records[0][1]["completion_ids"]) <= 3
    assert offered.choices[0].message.content == desk.codec.decode(records[0][2]["completion_ids"])
    assert records[0][2]["parser"] == "vllm:hermes"
    told = {
        desk.codec.decode(turn.prompt.ids): desk.codec.decode(turn.response.ids)
        for each in played
        for turn in each.turns
    }
    assert all(told[f"door {number}"] == heard[number] for number in range(8))


def test_a_call_that_vllms_parser_reads_reaches_the_program(desk: Desk, models: Path) -> None:
    """The student's answer is told to it, and worth what vLLM's scores say; what does not parse is text."""
    seat = desk.sit("c", number=3)
    client = client_of(seat)
    desk.student.script.extend([f"I do.\n{CALL}\n{CALL}", "<tool_call>open it</tool_call>"])
    good, broken = (client.chat.completions.create(model="m", messages=ASK, tools=[TOOL]).choices[0] for _ in range(2))
    seat.leave()
    client.close()
    records = check_rows(desk, models, ended(desk, 3))
    assert (good.finish_reason, good.message.content) == ("tool_calls", "I do.")
    assert [json.loads(call.function.arguments) for call in good.message.tool_calls] == [{"number": 3}] * 2
    assert (broken.message.content, broken.message.tool_calls) == ("<tool_call>open it</tool_call>", None)
    assert [record["parsed"] for record in records] == ["calls", "unparsed"]


def test_programs_train_with_vllm_and_weights_that_change_between_calls(models: Path, tmp_path: Path) -> None:
    """A whole run on the live clock: each row is worth to a fresh pass of its own version what was recorded."""
    files = {split: str(tmp_path / f"{split}.jsonl") for split in door_agent.TASKS}
    for split, file in files.items():
        Path(file).write_text("\n".join(json.dumps({"id": task}) for task in door_agent.Doors.tasks(split)))
    agent = [sys.executable, door_agent.__file__]
    settings = {
        "clock": "live",
        "environment": {"command": agent, "tasks": files, "tools": "none", "horizon": 4},
        "prompts": {"answer": "terse", "system": "", "max_prompt_tokens": 500},
        "student": {"model": str(models / "student"), "engine": "vllm"},
        "teacher": {"model": str(models / "teacher")},
        "composer": {"batch_size": 6, "cap": 2},
        "learner": {"updates": 4, "lr": 1e-3},
        "explorer": {"rollouts_in_flight": 3, "versions": "turn", "max_response_tokens": 6, "temperature": COOL},
        "evaluation": {"every": 4, "tasks": 2},
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "divopd", "train", str(tmp_path / "train.yaml"), "--out", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with Store.open_read_only(run) as store:
        audit_ledger(store)
        rows = [store.whole(turn) for turn in store.stored_turns() if not store.is_settled(turn)]
        assert len(rows) > 12
        reference, filled = TransformersPolicy.load(models / "student"), 0
        for row in sorted(rows, key=lambda row: row.version):
            record = read_attempts(store, int(row.rollout[1:]))[-1].calls[row.turn]
            assert record is not None
            assert (record["prompt_ids"], record["completion_ids"]) == (row.prompt_ids, row.response_ids)
            assert (record["logprobs"], record["first_version"]) == (row.student_logprobs, row.version)
            if row.version != filled:
                fill(reference, run / "weights" / f"{row.version:06d}")
                filled = row.version
            [[fresh]] = reference.score([[*row.prompt_ids, *row.response_ids]], [[(len(row.prompt_ids), row.tokens)]])
            assert row.student_logprobs is not None
            np.testing.assert_allclose(list(row.student_logprobs), fresh, atol=TOLERANCE)
        assert len({row.version for row in rows}) > 1
        figures = program_figures(store)
        assert figures is not None
        assert figures.calls >= len(rows)


def fill(policy: TransformersPolicy, folder: Path) -> None:
    from divopd.run.checkpoints import read_weights

    with torch.no_grad():
        policy.fill_weights(read_weights(folder), source=str(folder))


# ── vLLM's parsers, without an engine ─────────────────────────────────────────────────────────────────────────────


def chat_with(parser: str) -> Chat:
    tokenizer = build_tokenizer(["open the door"] * 2)
    return Chat(Codec(tokenizer), tools="plain", parser=f"vllm:{parser}")


XML = "<tool_call>\n<function=open_door>\n<parameter=number>\n3\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("parser", "text", "status", "content", "calls"),
    [
        ("hermes", "no tool", "text", "no tool", 0),
        ("hermes", CALL, "calls", None, 1),
        ("hermes", f"first\n{CALL}\n{CALL}", "calls", "first", 2),
        ("hermes", f"<think>maybe {CALL}</think>no", "text", f"<think>maybe {CALL}</think>no", 0),
        ("hermes", f"<think>so</think>{CALL}", "calls", "<think>so</think>", 1),
        ("hermes", "<tool_call>{broken</tool_call>", "unparsed", "<tool_call>{broken</tool_call>", 0),
        ("qwen3_coder", XML, "calls", None, 1),
        ("qwen3_coder", "no tool", "text", "no tool", 0),
        ("pythonic", "[open_door(number=3), open_door(number=3)]", "calls", None, 2),
        ("pythonic", "[open_door(number=", "text", "[open_door(number=", 0),
    ],
)
def test_parsers_of_vllm_read_answers(parser: str, text: str, status: str, content: str | None, calls: int) -> None:
    """The same as ours where both know the form; a call in a thought is none."""
    chat = chat_with(parser)
    said = chat.read(chat.codec.response_ids(text), [TOOL])
    assert (said.status, len(said.calls), said.content) == (status, calls, content)
    assert said.calls == [{"name": "open_door", "arguments": {"number": 3}}] * calls
    assert chat.parser == f"vllm:{parser}"


def test_a_parser_of_vllm_must_read_back_what_the_prompt_shows() -> None:
    """Plain text shows calls as hermes reads them; other parsers, stubs and unknown names are refused at the start."""
    chat_with("hermes").check_tools()
    for other in ("pythonic", "openai"):
        with pytest.raises(InputError, match=rf"a call that the parser reads \(parser: vllm:{other}\)"):
            chat_with(other).check_tools()
    with pytest.raises(
        InputError, match=r"llama3_json does not fit the student's tokenizer .*could not locate the bot"
    ):
        chat_with("llama3_json").check_tools()
    with pytest.raises(UnknownNameError, match="unknown tool parser of vLLM 'hermess'; did you mean 'hermes'"):
        chat_with("hermess").check_tools()
