"""Tools in prompts and in answers.

`template`: the model's chat template writes tools, calls and results. `plain`: a template that knows no tools gets them
as texts, in the form that most open models know (a JSON object between <tool_call> tags); `none`: no tools at all.
Answers are parsed by transformers, with the response template of the tokenizer if it brings one, or by one of vLLM's
parsers (vllm_parsers.py).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal, Protocol

from divopd.errors import InputError

ToolWay = Literal["template", "plain", "none"]
# no_tools: none were offered. text: no call in it. calls: parsed. unparsed: it looks like a call, and is told as text
ParseStatus = Literal["no_tools", "text", "calls", "unparsed"]
Json = dict[str, Any]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAGGED: Json = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "\ufdd1",  # the prompt is not looked at
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": CLOSE,
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}
_OFFER = (
    "These tools can be called, a JSON object each:\n{tools}\n"
    'A call is written as {open}\n{{"name": "NAME OF THE TOOL", "arguments": {{…}}}}\n{close}'
)


@dataclass(frozen=True)
class Said:
    """An answer as a program reads it."""

    content: str | None
    calls: list[Json] = field(default_factory=list[Json])  # {"name", "arguments"}
    status: ParseStatus = "no_tools"


class ToolParser(Protocol):
    """Finds the calls in an answer. `name` is for the record."""

    name: str

    def read(self, text: str, raw: str, tools: Sequence[Json]) -> Said:
        """An answer to a prompt that offers tools, `raw` with its control tokens. What cannot be parsed is text."""
        ...


class TransformersParser:
    """The tokenizer's own response template, where it brings one; else a JSON object between <tool_call> tags."""

    def __init__(self, tokenizer: Any) -> None:
        """An InputError says that the installed transformers parses no answers."""
        self._own = getattr(tokenizer, "response_template", None)
        self.name = "the tokenizer's response template" if self._own else "tagged JSON"
        self._parse = _parsing_of_transformers()

    def read(self, text: str, raw: str, tools: Sequence[Json]) -> Said:
        if self._own is None and OPEN not in raw:
            return Said(text, status="text")
        try:
            message = self._parse(raw, self._own or TAGGED, prefix="", tools=list(tools))
            calls = [called(call["function"]) for call in message.get("tool_calls") or ()]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return Said(text, status="unparsed")
        if not calls:
            return Said(text, status="unparsed" if OPEN in raw.rpartition("</think>")[2] else "text")
        thought, content = message.get("reasoning_content"), str(message.get("content") or "")
        whole = f"<think>{thought}</think>{content}" if thought else content
        return Said(whole.strip() or None, calls, "calls")


def _parsing_of_transformers() -> Callable[..., Any]:
    try:
        from transformers.utils.chat_parsing import parse_response
    except ImportError:
        raise InputError(
            f"transformers {version('transformers')} cannot parse tool calls; expected 5.19 or newer: run pip install "
            "--upgrade transformers, or set environment.tools to none (the program offers no tools), or "
            "environment.tool_parser to one of vLLM's, such as vllm:hermes"
        ) from None
    return parse_response


def called(function: Any) -> Json:
    """A call as its name and an object of arguments, or a ValueError."""
    name, arguments = function["name"], function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError
    return {"name": name, "arguments": arguments}


# ── tools as plain text ───────────────────────────────────────────────────────────────────────────────────────────


def written_plainly(messages: Sequence[Json], tools: Sequence[Json]) -> list[Json]:
    """The same conversation for a template that knows no tools: system, user and assistant texts only."""
    written: list[Json] = []
    if tools:
        offer = _OFFER.format(tools="\n".join(_json(tool["function"]) for tool in tools), open=OPEN, close=CLOSE)
        has_system = messages[0]["role"] == "system"
        before = [messages[0]["content"]] if has_system else []
        written.append({"role": "system", "content": "\n\n".join([*before, offer])})
        messages = messages[has_system:]
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if number and messages[number - 1]["role"] == "tool":
                written[-1]["content"] += f"\n{result}"
            else:
                written.append({"role": "user", "content": result})
        else:
            calls = [f"{OPEN}\n{_json(call['function'])}\n{CLOSE}" for call in message.get("tool_calls", ())]
            texts = [message["content"]] if message["content"] or not calls else []
            written.append({"role": message["role"], "content": "\n".join([*texts, *calls])})
    return written


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
