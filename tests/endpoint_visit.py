"""A rollout at a program's desk and its client, OpenAI's own, for the tests of the endpoint."""

import json
import urllib.request
from typing import Any

import pytest

from divopd.explorer import Played
from program_desk import Desk, Seat, wait_for

openai = pytest.importorskip("openai", reason="for want of the extra dev")
ASK: list[dict[str, Any]] = [{"role": "user", "content": "which door"}]


class Visit:
    """One rollout at the shared desk, and its client."""

    def __init__(self, desk: Desk, number: int, task: str = "a", **client: Any) -> None:
        self.desk, self.number = desk, number
        self.before = len(desk.over)
        self.seat: Seat = desk.sit(task, number=number)
        self.client = client_of(self.seat, **client)

    def ask(self, **more: Any) -> Any:
        return self.client.chat.completions.create(**{"model": "any", "messages": ASK} | more)

    def leave(self, **outcome: Any) -> Played:
        self.seat.leave(**outcome)
        self.client.close()
        return self.ended()

    def ended(self) -> Played:
        wait_for(lambda: any(one.start.number == self.number for one in self.desk.over))
        [played] = [one for one in self.desk.over if one.start.number == self.number]
        return played

    @property
    def calls(self) -> list[dict[str, Any]]:
        [attempt] = self.desk.attempts(self.number)
        assert attempt.is_complete
        return [record for record in attempt.calls.values() if record is not None]


def client_of(seat: Seat, **settings: Any) -> Any:
    return openai.OpenAI(base_url=seat.base_url, api_key=seat.key, **{"max_retries": 0, "timeout": 60} | settings)


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def request_of(seat: Seat, body: bytes) -> urllib.request.Request:
    headers = {"Authorization": f"Bearer {seat.key}", "Content-Type": "application/json"}
    return urllib.request.Request(f"{seat.base_url}/chat/completions", body, headers)


def post(seat: Seat) -> dict[str, Any]:
    """One question, by the plainest of clients: it is there at once."""
    with urllib.request.urlopen(request_of(seat, json.dumps({"messages": ASK}).encode())) as answer:
        return json.load(answer)
