"""What the endpoint refuses, each with a sentence: questions, keys, too many calls at once, prompts that do not fit."""

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from divopd.environments.programs import requests
from endpoint_visit import ASK, Visit, openai, post, request_of
from program_desk import TOOL, Desk, wait_for


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Desk(tmp_path_factory.mktemp("desk"), places=3) as desk:
        desk.sit("c").leave()  # it listens from the first program on
        desk.ended()
        yield desk


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "n": ({"n": 2}, "one answer a call"),
    "forced tool": ({"tools": [TOOL], "tool_choice": "required"}, "a forced call is not what was sampled"),
    "named tool": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "open_door"}}},
        "a forced call is not what was sampled",
    ),
    "one tool at most": ({"tools": [TOOL], "parallel_tool_calls": False}, "how many tools it calls"),
    "response format": ({"response_format": {"type": "json_object"}}, "a forced format"),
    "logit bias": ({"logit_bias": {"5": 1}}, "it changes what is sampled"),
    "repetition penalty": ({"extra_body": {"repetition_penalty": 1.2}}, "a penalty changes what is sampled"),
    "modalities": ({"modalities": ["text", "audio"]}, "text only"),
    "frequency penalty": ({"frequency_penalty": 0.1}, "a penalty changes what is sampled"),
    "presence penalty": ({"presence_penalty": 0.1}, "a penalty changes what is sampled"),
    "stop": ({"stop": ["door"]}, "where the student ends it"),
    "log probabilities": ({"logprobs": True}, "recorded, not sent"),
    "images": ({"messages": [{"role": "user", "content": [PICTURE]}]}, "reads nothing else"),
    "prefill": ({"messages": [*ASK, {"role": "assistant", "content": "I"}]}, "begins its own answers"),
    "unknown": ({"extra_body": {"top_k": 5}}, "top_k.* is not known here"),
    "no messages": ({"messages": []}, "at least one message"),
    "unknown role": ({"messages": [{"role": "wizard", "content": "x"}]}, "expected one of system"),
    "no number": ({"extra_body": {"temperature": "hot"}}, "expected a number"),
    "no whole number": ({"max_tokens": 0}, "expected a whole number from 1 on"),
    "no list of tools": ({"extra_body": {"tools": "open_door"}}, "tools is .*; expected a list"),
    "no function": ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "expected a function with a name"),
    "too many tools": ({"tools": [TOOL] * 257}, "expected at most 256"),
    "too many messages": ({"messages": ASK * 4097}, "expected at most 4096"),
    "no call": (
        {"messages": [*ASK, {"role": "assistant", "tool_calls": [{"id": "x", "type": "function"}]}, *ASK]},
        "expected a function with a name",
    ),
    "too long": ({"messages": [{"role": "user", "content": "door " * 5000}]}, "expected at most 4000"),
}


def test_what_would_change_the_sample_is_refused_with_a_sentence(shared: Desk) -> None:
    """Each of them by 400, before the student is asked; the program goes on and its refusals are recorded."""
    visit, asked = Visit(shared, 20), len(shared.student.asked)
    for more, sentence in REFUSED.values():
        with pytest.raises(openai.BadRequestError, match=sentence):
            visit.ask(**more)
    for body, sentence in ((b"{", "the body is no JSON"), (b"[1]", "the body is no JSON object")):
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            urllib.request.urlopen(request_of(visit.seat, body))
        assert sentence in json.load(refused.value)["error"]["message"]
    with pytest.raises(openai.BadRequestError, match="GET /v1/chat/completions is not served"):
        visit.client.get("/chat/completions", cast_to=object)
    for route in ("completions", "responses", "embeddings"):
        with pytest.raises(openai.BadRequestError, match="is not served"):
            visit.client.post(f"/{route}", body={"prompt": "x"}, cast_to=object)
    assert len(shared.student.asked) == asked
    assert visit.ask(n=1, tool_choice="auto", response_format={"type": "text"}, frequency_penalty=0).choices
    assert len(visit.leave().turns) == 1
    [attempt] = shared.attempts(20)
    assert attempt.ended is not None
    assert "n is 2; expected one answer a call" in attempt.ended["refused"][0]
    refusals = len(REFUSED) + 6
    assert len(attempt.ended["refused"]) == 20 < refusals
    assert attempt.ended["counts"] == {
        "broke_off": 0,
        "calls": 1,
        "with_tools": 0,
        "tool_calls": 0,
        "unparsed": 0,
        "refused": refusals,
        "undelivered": 0,
    }


def test_every_option_that_may_be_refused_has_its_case() -> None:
    """A new one wants a row above."""
    bodies = [more | more.get("extra_body", {}) for more, _ in REFUSED.values()]
    assert set(requests._ALLOWED) <= {name for body in bodies for name in body}


def test_too_many_calls_at_once_are_refused_until_some_are_answered(shared: Desk) -> None:
    """The sixty-fifth hears 429 and may come again; the others are turns."""
    visit = Visit(shared, 24)
    shared.student.held.clear()
    askers = [threading.Thread(target=post, args=(visit.seat,)) for _ in range(64)]
    for asker in askers:
        asker.start()
    [attempt] = [one for one in shared.endpoint._attempts.values() if not one.revoked]
    wait_for(lambda: len(attempt.calls) == 64)
    with pytest.raises(openai.RateLimitError, match="more than 64 calls at once"):
        visit.ask()
    shared.student.held.set()
    for asker in askers:
        asker.join()
    played = visit.leave()
    assert len(played.turns) == 64
    [told] = shared.attempts(24)
    assert told.ended is not None
    assert (told.ended["counts"]["calls"], told.ended["counts"]["refused"]) == (64, 1)


def test_a_call_that_waits_when_its_rollout_ends_is_refused(shared: Desk) -> None:
    """The rollout is cut at its only turn while two more calls wait: both hear 409."""
    seat = shared.sit("a", number=25, depth=1)
    heard: list[int] = []

    def ask() -> None:
        try:
            post(seat)
        except urllib.error.HTTPError as error:
            heard.append(error.code)
        except (urllib.error.URLError, ConnectionError):  # the program is killed, and this client is none of it
            heard.append(0)
        else:
            heard.append(200)

    shared.student.held.clear()
    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    [attempt] = [one for one in shared.endpoint._attempts.values() if not one.revoked]
    wait_for(lambda: len(attempt.calls) == 3)
    shared.student.held.set()
    for asker in askers:
        asker.join()
    assert sorted(heard) == [200, 409, 409]
    wait_for(lambda: any(one.start.number == 25 for one in shared.over))
    [played] = [one for one in shared.over if one.start.number == 25]
    assert len(played.turns) == 1


def test_a_prompt_that_does_not_fit_says_so_in_the_code_that_programs_know(shared: Desk) -> None:
    """A program that shortens its history looks for context_length_exceeded."""
    visit = Visit(shared, 21)
    with pytest.raises(openai.BadRequestError) as error:
        visit.ask(messages=[{"role": "user", "content": "door " * 5000}])
    visit.leave()
    assert error.value.code == "context_length_exceeded"


def test_a_program_that_insists_on_what_is_refused_breaks_off(shared: Desk) -> None:
    """A hundred times is enough: the prompts that it sends cost more than it does itself."""
    visit = Visit(shared, 23)
    headers = {"Authorization": f"Bearer {visit.seat.key}"}
    body = json.dumps({"messages": [{"role": "user", "content": "door " * 4000}]}).encode()
    for _ in range(101):
        at = urllib.request.Request(f"{visit.seat.base_url}/chat/completions", body, headers)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(at)
    assert "more than 100 calls of the program were refused" in str(visit.ended().failure)
    [attempt] = shared.attempts(23)
    assert attempt.ended is not None
    assert (attempt.ended["counts"]["refused"], attempt.ended["counts"]["broke_off"]) == (101, 1)
    assert "expected at most 4000" in attempt.ended["refused"][0]
    assert attempt.ended["output"] == "hello from a\n"
    visit.client.close()


def test_models_are_listed_and_strangers_get_nothing(shared: Desk) -> None:
    """A page of another site that comes by another name of this machine is refused, and so is a body too large."""
    visit = Visit(shared, 22)
    assert [model.id for model in visit.client.models.list()] == ["student"]
    bearer = {"Authorization": f"Bearer {visit.seat.key}"}
    at = urllib.request.Request(f"{visit.seat.base_url}/models", headers={"Host": "evil.example", **bearer})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(at)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{visit.seat.base_url}/models")
    host = visit.seat.base_url.removeprefix("http://").partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.putrequest("POST", "/v1/chat/completions")
    for name, value in (bearer | {"Content-Length": str(2**30)}).items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    visit.leave()
