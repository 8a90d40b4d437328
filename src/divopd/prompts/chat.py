"""The messages of a program to prompt ids, and the ids of an answer to what the program is sent.

Prompt ids are those of the chat template of the student's tokenizer, with the tools in it. Whatever messages and tools
spell, no control token comes from them: only the template says who speaks.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from divopd.errors import AlignmentError, InputError
from divopd.prompts.codec import Codec
from divopd.prompts.template_bounds import check_template
from divopd.prompts.tool_calls import Json, Said, ToolParser, ToolWay, TransformersParser, written_plainly
from divopd.prompts.vllm_parsers import PREFIX, VllmParser

_PROBE: Json = {
    "type": "function",
    "function": {
        "name": "divopd_probe",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALLED: Json = {"name": "divopd_probe", "arguments": {"city": "Oslo"}}
_RESULT = "DIVOPDRESULT"
_ID = "probe1234"
_EXAMPLE: list[Json] = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": _ID, "type": "function", "function": _CALLED}]},
    {"role": "tool", "content": _RESULT, "tool_call_id": _ID, "name": "divopd_probe"},
]


class Chat:
    """How a student reads the conversations of programs. `tools`: see tool_calls.py.

    `parser`: auto is that of transformers, vllm:NAME is one of vLLM's.
    """

    def __init__(self, codec: Codec, *, tools: ToolWay = "template", parser: str = "auto") -> None:
        self.codec, self.tools, self._parser_name = codec, tools, parser

    @cached_property
    def _parser(self) -> ToolParser:
        """An InputError says that it is not there; where no tools are offered nobody looks for it."""
        tokenizer, name = self.codec.tokenizer, self._parser_name
        return TransformersParser(tokenizer) if name == "auto" else VllmParser(name.removeprefix(PREFIX), tokenizer)

    def prompt(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
        """The ids before the answer; an AlignmentError says what the chat template has against the messages."""
        if tools and self.tools == "none":
            raise AlignmentError("tools are offered, but environment.tools is none; leave them out")
        texts = [self._disarmed(message) for message in messages]
        offered = [self._safe(tool, strictly=False) for tool in tools]
        if self.tools == "plain":
            texts, offered = written_plainly(texts, offered), []
        try:
            return self.codec.rendered_ids(self.codec.render(texts, offered))
        except Exception as error:  # a template raises what it likes: it is a program of somebody else
            raise AlignmentError(f"the chat template refuses these messages: {type(error).__name__}: {error}") from None

    def read(self, ids: Sequence[int], tools: Sequence[Json]) -> Said:
        """What an answer says, and which tools it calls."""
        text = self.codec.decode(ids)
        if not tools:
            return Said(text)
        ended = bool(ids) and ids[-1] == self.codec.stop
        raw = str(self.codec.tokenizer.decode(list(ids[:-1] if ended else ids), skip_special_tokens=False))
        return self._parser.read(text, raw, tools)

    @property
    def parser(self) -> str:
        """What parses answers, for the record."""
        return "none" if self.tools == "none" else self._parser.name

    def check_tools(self) -> None:
        """Refuse a chat template that does not show tools, or whose calls the parser does not find again."""
        if self.tools == "none":
            return
        before, after = self._shown(_EXAMPLE[:1]), self._shown(_EXAMPLE)
        missing = [
            what
            for what, shown in {
                "the tools that are offered": "divopd_probe" in before,
                "the result of a call": _RESULT in after,
                "a call that the parser reads": self._reads_back(before, after),
            }.items()
            if not shown
        ]
        if missing:
            way = "the student's chat template" if self.tools == "template" else "plain text"
            raise InputError(
                f"environment.tools is {self.tools}, but {way} does not show {', nor '.join(missing)} (parser: "
                f"{self.parser}); set it to plain (tools are written as text) or to none (the program offers no tools)"
            )

    def example(self) -> list[int]:
        """A prompt with all that a conversation may hold: for a teacher that must know its ids."""
        return self.prompt(*(([_EXAMPLE[0]], []) if self.tools == "none" else (_EXAMPLE, [_PROBE])))

    def _shown(self, messages: list[Json]) -> str:
        tools = [_PROBE]
        if self.tools == "plain":
            messages, tools = written_plainly(messages, tools), []
        tokenizer = self.codec.tokenizer
        special = {name: str(word) for name, word in tokenizer.special_tokens_map.items()}
        check_template(tokenizer.get_chat_template(), messages, special=special, arguments={"tools": tools})
        try:
            return self.codec.render(messages, tools)
        except Exception as error:  # a template raises what it likes
            raise InputError(
                f"environment.tools is {self.tools}, but the student's chat template refuses a call and its result "
                f"({type(error).__name__}: {error}); set it to plain or to none"
            ) from None

    def _reads_back(self, before: str, after: str) -> bool:
        """Whether the parser finds the call in what the template wrote of it."""
        same = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before))
        rest = after[same:]
        stop = str(self.codec.tokenizer.convert_ids_to_tokens(self.codec.stop))
        answer = rest.partition(stop)[0]
        return self._parser.read(answer, answer, [_PROBE]).calls == [_CALLED]

    def _disarmed(self, message: Json) -> Json:
        return self._safe(message, strictly=message["role"] in ("user", "tool"))

    def _safe(self, value: Any, *, strictly: bool) -> Any:
        """The same value with every text in it disarmed."""
        if isinstance(value, str):
            return self.codec.disarmed(value, strictly=strictly)
        if isinstance(value, dict):
            return {self._safe(k, strictly=strictly): self._safe(v, strictly=strictly) for k, v in value.items()}
        if isinstance(value, list):
            return [self._safe(one, strictly=strictly) for one in value]
        return value


def contents(seen: str) -> str:
    """What is said in a readable observation, without who says it."""
    return re.sub(r"(?m)^\[(?:system|user|assistant|tool)\] ", "", seen)


def readable(text: str) -> str:
    """An observation of a program for people: its last messages since an answer, or how it ended."""
    try:
        told = json.loads(text)
    except ValueError:  # a failure has words of its own
        return text
    if "messages" not in told:
        refused = "".join(f"\nrefused: {sentence}" for sentence in told.get("refused", ()))
        return f"{told.get('ended', '')}{refused}"
    messages = told["messages"]
    last = max((n for n, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    lines = [f"[{message['role']}] {message['content']}" for message in messages[last + 1 :]]
    return "\n".join(lines)
