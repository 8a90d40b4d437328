"""What a program is sent: a chat completion, whole or as a stream of events, or an error, as OpenAI's API has them."""

import json
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
CREATED = 0  # a moment would make two answers differ that are the same


def completion(
    *, call: str, model: str, content: str | None, calls: list[Json], finish: str, read: int, written: int
) -> Json:
    """The body of an answer; `read` and `written` are tokens."""
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    return {
        "id": f"chatcmpl-{call}",
        "object": "chat.completion",
        "created": CREATED,
        "model": model or "student",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def error(sentence: str, *, code: str) -> Json:
    return {"error": {"message": sentence, "type": "invalid_request_error", "param": None, "code": code}}


def models() -> Json:
    listed = {"id": "student", "object": "model", "created": CREATED, "owned_by": "divopd"}
    return {"object": "list", "data": [listed]}


def as_json(body: Json) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def as_events(body: Json, *, usage: bool) -> bytes:
    """The same completion as a stream that is sent at once: it was generated whole."""
    events = (b"data: " + as_json(chunk) + b"\n\n" for chunk in _chunks(body, usage=usage))
    return b"".join(events) + b"data: [DONE]\n\n"


def _chunks(body: Json, *, usage: bool) -> Iterator[Json]:
    [choice] = body["choices"]
    message = choice["message"]
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    if message["content"]:
        deltas.append({"content": message["content"]})
    deltas += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(message.get("tool_calls", []))]
    head = {name: body[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    none = {"usage": None} if usage else {}
    for delta in deltas:
        yield head | none | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield head | none | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if usage:
        yield head | {"choices": [], "usage": body["usage"]}
