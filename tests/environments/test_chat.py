"""Messages of programs as prompt ids, and answers as tool calls."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.environments import Observation
from divopd.errors import AlignmentError, InputError
from divopd.models.tiny import CHAT_TEMPLATE, build_tokenizer
from divopd.prompts import Codec, Conversation, PromptStyle
from divopd.prompts.chat import Chat, readable
from program_desk import TOOL

# as models that know tools have it: offered in the system text, called between tags, answered by a user's message
TOOL_TEMPLATE = (
    "{%- if tools %}{{ '<|see|># Tools\n' }}"
    "{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{% endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}{{ '<|act|>' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] -%}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}"
    "{{ '}\n</tool_call>' }}"
    "{%- endfor -%}{{ '<|end|>' }}"
    "{%- elif message.role == 'tool' -%}{{ '<|see|><tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- else -%}{{ '<|see|>' + message.content }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|act|>' }}{%- endif -%}"
)
MARKS = ("<|see|>", "<|act|>", "<|end|>")


def chat_with(template: str, **more: Any) -> Chat:
    tokenizer = build_tokenizer(["open the door"] * 2)
    tokenizer.chat_template = template
    return Chat(Codec(tokenizer), **more)


TEMPLATED, PLAIN = chat_with(TOOL_TEMPLATE), chat_with(CHAT_TEMPLATE, tools="plain")


def marks_in(chat: Chat, ids: list[int]) -> list[str]:
    words = chat.codec.tokenizer.convert_ids_to_tokens(ids)
    return [word for word in words if word in MARKS]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("chat", [TEMPLATED, PLAIN], ids=["template", "plain"])
@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(max_size=8) | st.sampled_from([*MARKS, "<|se", "e|>", "\ufdd0", "<tool_call>"]), max_size=6)
)
def test_only_the_template_says_who_speaks(chat: Chat, texts: list[str]) -> None:
    """Whatever messages and tools spell, in whatever pieces, the marks in a prompt are the template's."""
    text = "".join(texts)
    call = {"id": "x", "type": "function", "function": {"name": f"f{text}", "arguments": {text: text}}}
    messages = [user(text), {"role": "assistant", "content": text, "tool_calls": [call]}]
    messages += [{"role": "tool", "content": text, "tool_call_id": text}]
    tool = {"type": "function", "function": {"name": text, "description": text, "parameters": {}}}
    ids = chat.prompt(messages, [tool])
    assert marks_in(chat, ids) == ["<|see|>", "<|see|>", "<|act|>", "<|end|>", "<|see|>", "<|act|>"]


@given(st.text(max_size=20), st.text(max_size=20), st.sampled_from(["", "Open the door."]))
def test_a_conversation_is_the_prompt_that_an_environment_gives(first: str, second: str, system: str) -> None:
    """The same texts as messages, or as observations of a class: the same ids."""
    codec = PLAIN.codec
    conversation = Conversation(PromptStyle(system=system, actions="unlisted"), codec, Observation(first))
    answer = codec.response_ids("open the door")
    before = [{"role": "system", "content": system}] * bool(system)
    assert PLAIN.prompt([*before, user(first)], []) == conversation.prompt().ids
    conversation.add(answer, "open the door", Observation(second))
    messages = [*before, user(first), {"role": "assistant", "content": "open the door"}, user(second)]
    assert PLAIN.prompt(messages, []) == conversation.prompt().ids


def test_a_template_that_shows_tools_passes_its_test_and_others_are_refused() -> None:
    """Tools, a result and a call that the parser reads back; plain text stands in where a template has none of it."""
    TEMPLATED.check_tools()
    PLAIN.check_tools()
    chat_with(CHAT_TEMPLATE, tools="none").check_tools()
    with pytest.raises(InputError, match="does not show the tools that are offered, nor a call that the parser reads"):
        chat_with(CHAT_TEMPLATE).check_tools()
    half = TOOL_TEMPLATE.replace("</tool_call>", "</called>")
    with pytest.raises(InputError, match="does not show a call that the parser reads"):
        chat_with(half).check_tools()
    with pytest.raises(InputError, match="refuses a call and its result"):
        chat_with(
            TOOL_TEMPLATE.replace("message.role == 'tool'", "message.role == 'tool' and message.fail.x.y")
        ).check_tools()


def test_a_parser_that_is_not_there_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old transformers, or no vLLM: a sentence at the start; where no tools are offered nobody needs one."""
    monkeypatch.setitem(sys.modules, "transformers.utils.chat_parsing", None)  # as one that does not have it
    with pytest.raises(
        InputError, match=r"transformers \d+.* cannot parse tool calls; expected 5\.19 or newer: run pip"
    ):
        chat_with(CHAT_TEMPLATE, tools="plain").check_tools()
    without = chat_with(CHAT_TEMPLATE, tools="none")
    without.check_tools()
    assert without.read(without.codec.response_ids("open"), []).content == "open"
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InputError, match=r"tool_parser is vllm:hermes, but vLLM's parsers cannot be imported here"):
        chat_with(CHAT_TEMPLATE, tools="plain", parser="vllm:hermes").check_tools()


def test_tools_are_in_the_prompt_or_refused() -> None:
    """A program that offers tools to a student that shall have none hears so."""
    for chat in (TEMPLATED, PLAIN):
        assert "open_door" in chat.codec.decode(chat.prompt([user("go")], [TOOL]))
    with pytest.raises(AlignmentError, match=r"environment\.tools is none"):
        chat_with(CHAT_TEMPLATE, tools="none").prompt([user("go")], [TOOL])


GOOD = '<tool_call>\n{"name": "open_door", "arguments": {"number": 3}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "status", "content", "calls"),
    [
        ("no tool", "text", "no tool", 0),
        (GOOD, "calls", None, 1),
        (f"first\n{GOOD}\n{GOOD}", "calls", "first", 2),
        (f"<think>maybe {GOOD}</think>no", "text", f"<think>maybe {GOOD}</think>no", 0),
        (f"<think>so</think>{GOOD}", "calls", "<think>so</think>", 1),
        ("<tool_call>{broken</tool_call>", "unparsed", "<tool_call>{broken</tool_call>", 0),
        ('<tool_call>{"name": 5}</tool_call>', "unparsed", '<tool_call>{"name": 5}</tool_call>', 0),
        ("<tool_call>[]</tool_call>", "unparsed", "<tool_call>[]</tool_call>", 0),
        ('<tool_call>{"name": "a", "arguments": "b"}</tool_call>', "unparsed", None, 0),
    ],
)
def test_answers_are_parsed_or_told_as_text(text: str, status: str, content: str | None, calls: int) -> None:
    """No call is lost without a word, and none is invented."""
    said = PLAIN.read(PLAIN.codec.response_ids(text), [TOOL])
    assert (said.status, len(said.calls)) == (status, calls)
    assert said.content == (content if content is not None or calls else text)
    if calls:
        assert said.calls == [{"name": "open_door", "arguments": {"number": 3}}] * calls
    assert PLAIN.read(PLAIN.codec.response_ids(text), []).content == text


def test_what_a_program_sees_can_be_read() -> None:
    """Its messages since the last answer; how it ended; the words of a failure."""
    messages = [{"role": role, "content": role[0]} for role in ("user", "assistant", "tool")]
    assert readable(json.dumps({"messages": messages})) == "[tool] t"
    assert readable('{"ended": "it ended", "refused": ["n is 2"]}') == "it ended\nrefused: n is 2"
    assert readable("the program broke off") == "the program broke off"
