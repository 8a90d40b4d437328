"""A policy behind an SGLang server, by its own endpoint `/generate`: token ids go in, log probabilities come out.

Beside the OpenAI-compatible client: SGLang's `/v1/completions` does not return the log probabilities of a prompt. Names
and limits of the model come from `/v1/models`, which SGLang has as well. Tried against recorded answers in the shape
that SGLang documents; no SGLang server has ever answered us.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from divopd.errors import WrongAnswerError
from divopd.models.asking import ask
from divopd.models.openai_policy import ANSWER_BYTES, TOKEN_BYTES, OpenAIPolicy
from divopd.models.packing import Sequence as TokenSequence
from divopd.models.policy import Response

SAMPLING = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "skip_special_tokens": False}


class SglangPolicy(OpenAIPolicy):
    """Scores and responds by `/generate` of `url`, which ends in /v1 as that of an OpenAI-compatible server does."""

    @property
    def context_length(self) -> int | None:
        """The longest sequence that can be scored: nothing is generated for it."""
        longest = self._card.get("max_model_len")
        return longest if isinstance(longest, int) else None

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        """One response per prompt. The server draws by itself: seeds are not passed on.

        Its log probabilities are those after the temperature, so that others than 1 are scored once more.
        """
        assert len(prompts) == len(seeds)

        def one(prompt: Sequence[int]) -> Response:
            meta = self._ask(prompt, temperature=temperature, new=max_tokens, start=-1)
            values, ids = self._pairs(meta, "output_token_logprobs")
            if not 0 < len(ids) <= max_tokens or None in values:
                raise WrongAnswerError(
                    f"{self.url} does not say which tokens it generated, at most {max_tokens}, each with its log "
                    "probability; expected output_token_logprobs, as SGLang's /generate returns them"
                )
            if temperature == 1.0:
                return Response(ids, self._logprobs(values))
            whole = np.asarray([*prompt, *ids], dtype=np.int64)
            return Response(ids, self._scores(whole, len(prompt))[len(prompt) :])

        return self._each(one, prompts)

    def _read(self, sequence: TokenSequence) -> np.ndarray:
        """The log probabilities of a sequence's tokens from the first that is wanted on; NaN before."""
        return self._scores(sequence.ids, sequence.first)

    def _scores(self, ids: np.ndarray, first: int) -> np.ndarray:
        # it tells of every token from start on, but has no probability for the one at start itself
        meta = self._ask(ids.tolist(), temperature=1.0, new=0, start=first - 1)
        values, told = self._pairs(meta, "input_token_logprobs")
        if told != ids[first - 1 :].tolist() or None in values[1:]:
            raise WrongAnswerError(
                f"{self.url} returned log probabilities of {len(told)} prompt tokens, {values[1:].count(None)} of them "
                f"without a number, for {len(ids) - first} of {len(ids)} tokens; check that it serves a model with the "
                "student's tokenizer and cuts no prompt"
            )
        return np.concatenate([np.full(first, np.nan), self._logprobs(values[1:])])

    def _pairs(self, meta: dict[str, Any], name: str) -> tuple[list[Any], list[Any]]:
        """Log probabilities and ids of SGLang's triples (log probability, id, text)."""
        triples = meta.get(name)
        if not isinstance(triples, list) or not all(isinstance(t, list) and len(t) >= 2 for t in triples):
            raise WrongAnswerError(
                f"{self.url} answered without {name}; expected an SGLang server of 0.4 or later (others: "
                "teacher.server openai)"
            )
        return [triple[0] for triple in triples], [triple[1] for triple in triples]

    def _ask(self, ids: Sequence[int], *, temperature: float, new: int, start: int) -> dict[str, Any]:
        """What the server says about one generation; `start` -1: nothing about the prompt."""
        prompt = [int(id_) for id_ in ids]
        body = {
            "input_ids": prompt,
            "sampling_params": SAMPLING | {"temperature": temperature, "max_new_tokens": new},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        url = f"{self.url.removesuffix('/v1')}/generate"
        max_bytes = ANSWER_BYTES + TOKEN_BYTES * (len(prompt) + new)
        meta = ask(url, body, timeout_s=self.timeout_s, max_bytes=max_bytes).get("meta_info")
        if not isinstance(meta, dict):
            raise WrongAnswerError(f"{self.url} answered without meta_info; expected SGLang's /generate")
        return meta
