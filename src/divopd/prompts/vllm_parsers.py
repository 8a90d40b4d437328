"""vLLM's parsers of tool calls, where it is installed: `environment.tool_parser: vllm:hermes`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from divopd.errors import InputError, UnknownNameError, how_to_install
from divopd.prompts.tool_calls import OPEN, Json, Said, called

PREFIX = "vllm:"
THOUGHT_ENDS = "</think>"
# what parsers call the text with which their calls begin
_MARKS = (
    "tool_call_start_token",
    "tool_calls_start_token",
    "tool_call_prefix",
    "bot_token",
    "bot_string",
    "start_token",
)


class VllmParser:
    """One of vLLM's parsers, asked for whole answers as its server asks it.

    A thought is left out of what it reads, as the server's reasoning parsers do: a call in a thought is none.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        """An InputError says that there is no such parser here."""
        self.name, self._tokenizer = f"{PREFIX}{name}", tokenizer
        self._parser, self._request = _find(name)
        try:
            self._parser(tokenizer)
        except Exception as error:  # a parser raises what it likes: it is a program of somebody else
            raise InputError(
                f"environment.tool_parser is {self.name}, but {name} does not fit the student's tokenizer ({error}); "
                "set it to the parser that the model's page names, or to auto"
            ) from None

    def read(self, text: str, raw: str, tools: Sequence[Json]) -> Said:
        request = self._request(messages=[{"role": "user", "content": ""}], tools=list(tools), tool_choice="auto")
        thought, end, answer = raw.rpartition(THOUGHT_ENDS)
        parser: Any = None
        try:
            parser = self._parser(self._tokenizer, request.tools)
            request = parser.adjust_request(request)
            if request.skip_special_tokens:
                thought, end, answer = text.rpartition(THOUGHT_ENDS)
            found = parser.extract_tool_calls(answer, request)
            calls = [called(one.function.model_dump()) for one in found.tool_calls]
        except Exception:  # a parser raises what it likes: it is a program of somebody else
            return Said(text, status="unparsed")
        if not calls:
            return Said(text, status="unparsed" if any(mark in answer for mark in _marks(parser)) else "text")
        return Said(f"{thought}{end}{found.content or ''}".strip() or None, calls, "calls")


def _marks(parser: Any) -> list[str]:
    """What a call begins with: an answer that has it, and no call, is one that does not parse."""
    known = [getattr(parser, name, None) for name in _MARKS]
    return [mark for mark in known if isinstance(mark, str) and mark] or [OPEN]


def _find(name: str) -> tuple[Any, Any]:
    """The class of a parser, and that of the request which it wants to see."""
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager
    except ImportError as error:
        raise InputError(
            f"environment.tool_parser is {PREFIX}{name}, but vLLM's parsers cannot be imported here ({error}); run "
            f"{how_to_install('vllm')}, or set it to auto"
        ) from None
    known: Mapping[str, Any] | list[str] = ToolParserManager.list_registered()
    if name not in known:
        raise UnknownNameError("tool parser of vLLM", name, known)
    for part in ("vllm.tool_parsers", "vllm.parser"):  # they log a stack for every answer that does not parse
        logging.getLogger(part).setLevel(logging.CRITICAL)
    return ToolParserManager.get_tool_parser(name), ChatCompletionRequest
