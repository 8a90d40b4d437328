"""A policy behind an OpenAI-compatible server that returns the log probabilities of prompts, as vLLM does.

Prompts go there as token ids, so nothing is tokenised again, and what comes back is held against the ids that were
sent. What is away, what is wrong and what is too large is one rule: see asking.py.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from divopd.errors import InputError, WrongAnswerError
from divopd.models.asking import address_of, ask
from divopd.models.packing import Sequence as TokenSequence
from divopd.models.policy import Response, score_merged
from divopd.printable import one_line
from divopd.validity import MAX_LOGPROB

IN_FLIGHT = 16  # requests at once: the server makes batches of them
# the most that an answer needs: a token comes with its id, its text, its rank and its log probability
TOKEN_BYTES, ANSWER_BYTES, LIST_BYTES = 2**10, 2**16, 2**20
MINUS_INFINITY = -9999.0  # how vLLM writes it, because JSON has none
MAX_ID = 2**31 - 1
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
        """`timeout_s` is how long the server may take for one whole answer."""
        address_of(url)
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._asked_for = model

    @cached_property
    def _card(self) -> dict[str, Any]:
        """What the server says of the model."""
        answer = ask(f"{self.url}/models", None, timeout_s=self.timeout_s, max_bytes=LIST_BYTES)
        cards = answer.get("data")
        if not isinstance(cards, list) or not all(
            isinstance(card, dict) and isinstance(card.get("id"), str) for card in cards
        ):
            raise WrongAnswerError(f"{self.url}/models does not list models; expected an OpenAI-compatible server")
        for card in cards:
            if self._asked_for in (None, card["id"]):
                return card
        names = one_line(", ".join(card["id"] for card in cards))
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
        return score_merged(sequences, spans, lambda merged: self._each(self._read, merged))

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        """One response per prompt, sampled by the server with the prompt's own seed."""

        def one(prompt: tuple[Sequence[int], int]) -> Response:
            ids, seed = prompt
            wish = {"temperature": temperature, "max_tokens": max_tokens, "seed": int(seed), "logprobs": 0}
            choice = self._complete(ids, wish)
            tokens, values = _list(choice, "token_ids"), _list(choice.get("logprobs"), "token_logprobs")
            if not 0 < len(tokens) <= max_tokens or not all(map(_is_id, tokens)) or len(values) != len(tokens):
                raise WrongAnswerError(
                    f"{self.url} does not say which tokens it generated, at most {max_tokens}, each with its log "
                    "probability; expected token_ids and logprobs, as vLLM (0.10.2 or later) returns them"
                )
            return Response(tokens, self._logprobs(values))

        return self._each(one, zip(prompts, seeds, strict=True))

    def _read(self, sequence: TokenSequence) -> np.ndarray:
        """The log probability of every token but the first, which has none."""
        ids = sequence.ids
        choice = self._complete(ids, {"max_tokens": 1, "prompt_logprobs": 0})  # vLLM always generates a token
        answer = _list(choice, "prompt_logprobs")
        if not answer:
            raise WrongAnswerError(
                f"{self.url} returned no log probabilities of the prompt; expected prompt_logprobs, as vLLM's "
                "completions have them: use such a server as a teacher"
            )
        pairs = zip(ids, answer, strict=False)  # they are counted below
        got = [entry.get(str(token)) if isinstance(entry, dict) else None for token, entry in pairs]
        read = choice.get("prompt_token_ids")
        if len(answer) != len(ids) or None in got[1:] or (read is not None and read != ids.tolist()):
            raise WrongAnswerError(
                f"{self.url} returned log probabilities of {len(answer)} prompt tokens, {got[1:].count(None)} of them "
                f"of other ids, for {len(ids)} tokens that were sent; check that it serves a model with the student's "
                "tokenizer and cuts no prompt"
            )
        return np.concatenate([[np.nan], self._logprobs(got[1:])])

    def _logprobs(self, values: Sequence[Any]) -> np.ndarray:
        """The numbers, plain or in vLLM's record of a token; one that no log probability can be is refused."""
        numbers: list[Any] = [value.get("logprob") if isinstance(value, dict) else value for value in values]
        for number in numbers:
            if type(number) not in (int, float) or not MINUS_INFINITY <= number <= MAX_LOGPROB:
                raise WrongAnswerError(
                    f"{self.url} returned {one_line(repr(number)[:40])} as a log probability; expected a number from "
                    f"{MINUS_INFINITY:g} to 0: check what it serves"
                )
        return np.asarray([float(number) if number > MINUS_INFINITY else -np.inf for number in numbers])

    # ── the wire ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _each(self, work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """All requests at once, results in order; the first that fails is raised when none is under way any more."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return list(pool.map(work, items))

    def _complete(self, ids: Sequence[int] | np.ndarray, wish: dict[str, Any]) -> dict[str, Any]:
        prompt = np.asarray(ids).tolist()
        body = PLAIN | {"model": self.model, "prompt": prompt, "return_token_ids": True} | wish
        max_bytes = ANSWER_BYTES + TOKEN_BYTES * (len(prompt) + wish["max_tokens"])
        url = f"{self.url}/completions"
        choices = ask(url, body, timeout_s=self.timeout_s, max_bytes=max_bytes).get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise WrongAnswerError(f"{self.url} answered without a choice; expected an OpenAI-compatible completion")
        return choices[0]


def _list(answer: Any, name: str) -> list[Any]:
    value = answer.get(name) if isinstance(answer, dict) else None
    return value if isinstance(value, list) else []


def _is_id(token: Any) -> bool:
    return type(token) is int and 0 <= token <= MAX_ID
