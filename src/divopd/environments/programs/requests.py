"""What a program asks for, read from the body of a chat completion, and refused if it would change what is sampled.

A request that passes is written in one form: the messages have plain texts, tool calls have their arguments as objects,
and `asked` holds what was said about sampling, which the configuration decides.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_MESSAGES = 4_096
MOST_TOOLS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")
# said about sampling: recorded, and overruled by the configuration; max_tokens may shorten a response
ASKED = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed")
# says nothing about the response
IDLE = ("model", "messages", "tools", "stream", "stream_options", "user", "store", "metadata", "service_tier")
IDLE_TOO = ("safety_identifier", "prompt_cache_key")

Json = dict[str, Any]


class Refused(Exception):
    """A request that is not answered: the HTTP status, and a sentence that says why."""

    def __init__(self, sentence: str, *, status: int = 400, code: str = "unsupported") -> None:
        super().__init__(sentence)
        self.sentence, self.status, self.code = sentence, status, code


def read_request(body: object) -> Json:
    """The request in its one form: `messages`, `tools`, `asked`, `stream`, `usage` (in a stream) and `model`."""
    if not isinstance(body, Mapping):
        raise Refused("the body is no JSON object; expected that of a chat completion", code="invalid")
    given = {str(name): value for name, value in body.items() if value is not None}
    for name, value in given.items():
        _refuse_option(name, value)
    options = given.get("stream_options", {})
    return {
        "model": str(given.get("model", ""))[:200],
        "messages": _messages(given.get("messages")),
        "tools": [] if given.get("tool_choice") == "none" else _tools(given.get("tools", [])),
        "asked": _asked(given),
        "stream": bool(given.get("stream", False)),
        "usage": isinstance(options, Mapping) and bool(options.get("include_usage")),
    }


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────

# what an option may be; anything else changes what is sampled, and its sentence is told
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n": (lambda value: value == 1, "one answer a call: a turn has one response"),
    "tool_choice": (lambda value: value in ("auto", "none"), "auto or none: a forced call is not what was sampled"),
    "parallel_tool_calls": (lambda value: value is True, "true: the student decides how many tools it calls"),
    "response_format": (lambda value: value == {"type": "text"}, "text: a forced format is not what was sampled"),
    "logit_bias": (lambda value: value == {}, "none: it changes what is sampled"),
    "frequency_penalty": (lambda value: value == 0, "0: a penalty changes what is sampled"),
    "presence_penalty": (lambda value: value == 0, "0: a penalty changes what is sampled"),
    "repetition_penalty": (lambda value: value == 1, "1: a penalty changes what is sampled"),
    "stop": (lambda value: value == [], "none: a response ends where the student ends it"),
    "logprobs": (lambda value: value is False, "false: log probabilities are recorded, not sent"),
    "modalities": (lambda value: value == ["text"], "text only"),
}


def _refuse_option(name: str, value: object) -> None:
    if name in IDLE or name in IDLE_TOO or name in ASKED:
        return
    if name not in _ALLOWED:
        raise Refused(f"{_short(name)} is not known here; leave it out: what it does to sampling cannot be recorded")
    allows, expected = _ALLOWED[name]
    if not allows(value):
        raise Refused(f"{name} is {_short(value)}; expected {expected}")


def _asked(given: Json) -> Json:
    asked = {name: given[name] for name in ASKED if name in given}
    for name, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(f"{name} is {_short(value)}; expected a number", code="invalid")
    for name in ("max_tokens", "max_completion_tokens"):
        if name in asked and (not isinstance(asked[name], int) or asked[name] < 1):
            raise Refused(f"{name} is {asked[name]}; expected a whole number from 1 on", code="invalid")
    return asked


# ── messages and tools ────────────────────────────────────────────────────────────────────────────────────────────


def _messages(given: object) -> list[Json]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise Refused(f"messages is {_short(given)}; expected a list with at least one message", code="invalid")
    if len(given) > MOST_MESSAGES:
        raise Refused(f"messages has {len(given)} of them; expected at most {MOST_MESSAGES}", code="invalid")
    read = [_message(number, message) for number, message in enumerate(given)]
    if read[-1]["role"] == "assistant":
        raise Refused("the last message is the assistant's; expected another: the student begins its own answers")
    return read


def _message(number: int, message: object) -> Json:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        role = message.get("role") if isinstance(message, Mapping) else message
        raise Refused(f"{where} has the role {_short(role)}; expected one of {', '.join(ROLES)}", code="invalid")
    role = "system" if message["role"] == "developer" else str(message["role"])
    read: Json = {"role": role, "content": _text(where, message.get("content"))}
    if role == "assistant" and message.get("tool_calls"):
        read["tool_calls"] = [_tool_call(where, call) for call in _list(f"{where}.tool_calls", message["tool_calls"])]
    if role == "tool":
        read["tool_call_id"] = str(message.get("tool_call_id", ""))
    if isinstance(message.get("name"), str):
        read["name"] = message["name"]
    return read


def _text(where: str, content: object) -> str:
    """A text, or a list of parts that are texts; one text is made of them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for part in _list(f"{where}.content", content):
        if not isinstance(part, Mapping) or part.get("type") not in ("text", "refusal"):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise Refused(f"{where} has a part of type {_short(kind)}; expected text: the student reads nothing else")
        parts.append(str(part.get("text", part.get("refusal", ""))))
    return "\n".join(parts)


def _tool_call(where: str, call: object) -> Json:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Refused(f"{where} has a tool call {_short(call)}; expected a function with a name", code="invalid")
    return {
        "id": str(call.get("id", "")),
        "type": "function",
        "function": {"name": function["name"], "arguments": _arguments(function.get("arguments", {}))},
    }


def _arguments(given: object) -> object:
    """An object: most chat templates write JSON themselves. What is no JSON object stays the text that it is."""
    if not isinstance(given, str):
        return given
    try:
        read = json.loads(given) if given else {}
    except (ValueError, RecursionError):
        return given
    return read if isinstance(read, dict) else given


def _tools(given: object) -> list[Json]:
    tools = _list("tools", given)
    if len(tools) > MOST_TOOLS:
        raise Refused(f"tools has {len(tools)} of them; expected at most {MOST_TOOLS}", code="invalid")
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refused(f"tools[{number}] is {_short(tool)}; expected a function with a name")
    return [dict(tool) for tool in tools]


def _list(what: str, given: object) -> list[Any]:
    if not isinstance(given, list):
        raise Refused(f"{what} is {_short(given)}; expected a list", code="invalid")
    return given


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
