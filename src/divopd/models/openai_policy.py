"""A policy behind an OpenAI-compatible server that returns the log probabilities of prompts, as vLLM does.

Prompts go there as token ids, so nothing is tokenised again, and what comes back is held against the ids that were
sent. A server that cannot be reached, or is overloaded, is a TeacherAwayError: the same call may be made again later.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np

from divopd.errors import AlignmentError, InputError, TeacherAwayError
from divopd.models.policy import Response, score_merged

IN_FLIGHT = 16  # requests at once: the server makes batches of them
BUSY = (408, 429)  # statuses below 500 that pass
SHOWN = 300  # characters of what a server says about an error
MAX_ANSWER_BYTES = 2**28
MINUS_INFINITY = -9999.0  # how vLLM writes it, because JSON has none
# the plain distribution of the model, whatever defaults the server has
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
T = TypeVar("T")


class OpenAIPolicy:
    """Scores and responds by the completions endpoint of `url` (it ends in /v1, as a rule).

    `model` is its name there; None: the first model that the server lists.
    """

    tokenizer = None  # a server shows none
    exact = False

    def __init__(self, url: str, *, model: str | None, timeout_s: float) -> None:
        """`timeout_s` is how long the server may be silent."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InputError(f"{url!r} is no address of a server; expected http://HOST:PORT/v1 or https://…")
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._asked_for = model
        self._opener = build_opener(ProxyHandler({}))  # straight to the server: a proxy is for other addresses

    @cached_property
    def _card(self) -> dict[str, Any]:
        """What the server says of the model."""
        cards = self._ask("models").get("data")
        if not isinstance(cards, list) or not all(isinstance(card, dict) and "id" in card for card in cards):
            raise AlignmentError(f"{self.url}/models does not list models; expected an OpenAI-compatible server")
        for card in cards:
            if self._asked_for in (None, card["id"]):
                return card
        names = ", ".join(str(card["id"]) for card in cards)[:SHOWN]
        raise InputError(f"{self.url} has no model {self._asked_for!r}; it has {names or 'none'}: set teacher.model")

    @property
    def model(self) -> str:
        """The model's name on the server."""
        return self._card["id"]

    @property
    def context_length(self) -> int | None:
        """The longest sequence that can be scored, if the server says so: it always generates one token more."""
        longest = self._card.get("max_model_len")
        return longest - 1 if isinstance(longest, int) else None

    def score(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[np.ndarray]]:
        """Log probabilities of the tokens start … end - 1 of each span; sequences that continue one another go once."""
        return score_merged(sequences, spans, lambda merged: self._each(self._prompt_logprobs, merged))

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        """One response per prompt, sampled by the server with the prompt's own seed."""

        def one(prompt: tuple[Sequence[int], int]) -> Response:
            ids, seed = prompt
            wish = {"temperature": temperature, "max_tokens": max_tokens, "seed": int(seed), "logprobs": 0}
            choice = self._complete(ids, wish)
            tokens, values = _list(choice, "token_ids"), _list(choice.get("logprobs"), "token_logprobs")
            if not tokens or not all(isinstance(token, int) for token in tokens) or len(values) != len(tokens):
                raise AlignmentError(
                    f"{self.url} does not say which tokens it generated, each with its log probability; expected "
                    "token_ids and logprobs, as vLLM (0.10.2 or later) returns them"
                )
            return Response(tokens, np.asarray([_number(value) for value in values]))

        return self._each(one, zip(prompts, seeds, strict=True))

    def _prompt_logprobs(self, ids: np.ndarray) -> np.ndarray:
        """The log probability of every token but the first, which has none."""
        choice = self._complete(ids, {"max_tokens": 1, "prompt_logprobs": 0})  # vLLM always generates a token
        answer = _list(choice, "prompt_logprobs")
        if not answer:
            raise AlignmentError(
                f"{self.url} returned no log probabilities of the prompt; expected prompt_logprobs, as vLLM's "
                "completions have them: use such a server as a teacher"
            )
        pairs = zip(ids, answer, strict=False)  # they are counted below
        got = [entry.get(str(token)) if isinstance(entry, dict) else None for token, entry in pairs]
        read = choice.get("prompt_token_ids")
        if len(answer) != len(ids) or None in got[1:] or (read is not None and read != ids.tolist()):
            raise AlignmentError(
                f"{self.url} returned log probabilities of {len(answer)} prompt tokens, {got[1:].count(None)} of them "
                f"of other ids, for {len(ids)} tokens that were sent; check that it serves a model with the student's "
                "tokenizer and cuts no prompt"
            )
        return np.asarray([np.nan, *(_number(entry) for entry in got[1:])])

    # ── the wire ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _each(self, work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """All requests at once, results in order; the first that fails is raised when none is under way any more."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return list(pool.map(work, items))

    def _complete(self, ids: Sequence[int] | np.ndarray, wish: dict[str, Any]) -> dict[str, Any]:
        prompt = np.asarray(ids).tolist()
        body = PLAIN | {"model": self.model, "prompt": prompt, "return_token_ids": True} | wish
        choices = self._ask("completions", body).get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise AlignmentError(f"{self.url} answered without a choice; expected an OpenAI-compatible completion")
        return choices[0]

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=self.timeout_s) as answer:
                text = answer.read(MAX_ANSWER_BYTES)
        except HTTPError as error:
            said = f"{request.full_url} answered {error.code}: {_said(error)}"
            if error.code >= 500 or error.code in BUSY:
                raise TeacherAwayError(f"{said}; it is asked again") from None
            raise InputError(f"{said}; check teacher.url, teacher.model and the length of prompts") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise TeacherAwayError(
                f"{self.url} cannot be reached ({reason}); start the server, or correct teacher.url"
            ) from None
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise AlignmentError(f"{request.full_url} did not answer with JSON; expected an OpenAI-compatible server")
        return answer


def _said(error: HTTPError) -> str:
    """The beginning of what a server says about an error, on one line."""
    text = b""
    with suppress(OSError, HTTPException):  # it may fall silent in the middle
        text = error.read(4 * SHOWN)
    return " ".join(text.decode("utf-8", errors="replace").split())[:SHOWN] or str(error.reason)


def _list(answer: Any, name: str) -> list[Any]:
    value = answer.get(name) if isinstance(answer, dict) else None
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    """A log probability, plain or in vLLM's record of a token; what is none is NaN, which makes its turn invalid."""
    number = value.get("logprob") if isinstance(value, dict) else value
    if not isinstance(number, int | float):
        return float("nan")
    return float(number) if number > MINUS_INFINITY else float("-inf")
