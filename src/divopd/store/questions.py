"""What an explorer asks a teacher to do in a student's place (recovery), and what is answered: plain data."""

import json
from typing import Any, NamedTuple


class Question(NamedTuple):
    """A prompt to which the teacher of a task is to respond. Who asks chooses a number that nobody else has."""

    number: int
    task: str
    prompt_ids: list[int]
    temperature: float
    max_tokens: int
    seed: int


class Answer(NamedTuple):
    """The tokens of a response and their log probabilities."""

    ids: list[int]
    logprobs: list[float]


def encode_question(question: Question, *, asker: str) -> bytes:
    return json.dumps(question._asdict() | {"asker": asker}, separators=(",", ":")).encode()


def decode_question(content: bytes) -> tuple[str, Question]:
    """(who asked, the question); anything else raises a ValueError, KeyError or TypeError."""
    data: dict[str, Any] = json.loads(content)
    return data.pop("asker"), Question(**data)


def encode_answer(answer: Answer) -> bytes:
    return json.dumps(answer._asdict(), separators=(",", ":")).encode()


def decode_answer(content: bytes) -> Answer:
    """The answer of `encode_answer`; anything else raises a ValueError or TypeError."""
    return Answer(**json.loads(content))
