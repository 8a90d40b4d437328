"""Sampling responses with the memory of earlier turns: of a rollout's next prompt only the new tokens are read."""

from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divopd.errors import InputError
from divopd.models.attention import KeyValues
from divopd.models.logprobs import at_least_float32, hidden_states, log_softmax
from divopd.models.policy import Response


class Generator:
    """Responds to prompts with one model. What it remembers is dropped as soon as a weight changes."""

    def __init__(self, model: Any, *, read_at_once: int, forbidden: Items[int] = ()) -> None:
        """`read_at_once` bounds the prompt tokens of one forward pass; `forbidden` ids are never sampled."""
        self.model = model
        self.read_at_once = read_at_once
        self.forbidden = torch.tensor(sorted(forbidden), dtype=torch.int64)
        self._memory = KeyValues()
        self._known: list[np.ndarray] = []  # the tokens that each row of the memory has read
        self._weights: list[tuple[int, int]] = []

    @torch.inference_mode()
    def respond(
        self, prompts: Items[Items[int]], *, temperature: float, max_tokens: int, seeds: Items[int]
    ) -> list[Response]:
        """See TransformersPolicy.respond."""
        contexts = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
        if not contexts or max_tokens < 1:
            return [Response([], np.empty(0)) for _ in contexts]
        if not all(map(len, contexts)):
            raise InputError("a prompt has no token; a response needs at least one token before it")
        self._forget_after_weight_change()
        rows = self._places_for(contexts)
        self._memory.make_room(len(self._known), max(map(len, contexts)) + max_tokens)
        logits = self._read(rows, contexts)
        draws = np.stack([np.random.Generator(np.random.Philox(seed)).random(max_tokens) for seed in seeds])
        responses = self._write(rows, logits, temperature=temperature, draws=draws)
        for row, context, response in zip(rows, contexts, responses, strict=True):
            self._known[row] = np.append(context, response.ids[:-1])
        return responses

    def _read(self, rows: list[int], contexts: list[np.ndarray]) -> Tensor:
        """Read what is not known yet of the prompts; the logits after each."""
        logits: list[Tensor] = [torch.empty(0)] * len(contexts)
        lengths = self._memory.lengths
        while any(todo := [len(context) - lengths[row] for row, context in zip(rows, contexts, strict=True)]):
            room = self.read_at_once
            new = []
            for left in todo:
                new.append(min(left, room))
                room -= new[-1]
            parts = [c[lengths[row] : lengths[row] + n] for row, c, n in zip(rows, contexts, new, strict=True)]
            hidden = self._forward(rows, parts)
            ends = np.cumsum(new) - 1
            finished = [place for place, (left, n) in enumerate(zip(todo, new, strict=True)) if 0 < left == n]
            for place, place_logits in zip(finished, self._logits(hidden[ends[finished]]), strict=True):
                logits[place] = place_logits
        return torch.stack(logits)

    def _write(self, rows: list[int], logits: Tensor, *, temperature: float, draws: np.ndarray) -> list[Response]:
        """Sample token by token, as long as there is a response that has not ended."""
        ids: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        stops, going = self.stop_ids(), list(range(len(rows)))
        for step in range(draws.shape[1]):
            tokens = _choose(self._allowed(logits), temperature, draws[going, step])
            chosen = log_softmax(logits).gather(-1, tokens[:, None])[:, 0].double().cpu()
            for place, token, logprob in zip(going, tokens.tolist(), chosen.tolist(), strict=True):
                ids[place].append(token)
                logprobs[place].append(logprob)
            going = [place for place in going if ids[place][-1] not in stops]
            if not going or step + 1 == draws.shape[1]:
                break
            last = [np.asarray(ids[place][-1:]) for place in going]
            logits = self._logits(self._forward([rows[place] for place in going], last))
        return [Response(own, np.asarray(values)) for own, values in zip(ids, logprobs, strict=True)]

    def _forward(self, rows: list[int], parts: Items[np.ndarray]) -> Tensor:
        """Read one part of every row (it may be empty) and count it in."""
        device = next(self.model.parameters()).device
        positions = [np.arange(len(part)) + self._memory.lengths[row] for row, part in zip(rows, parts, strict=True)]
        self._memory.expect(rows, [len(part) for part in parts])
        ids, at = (torch.from_numpy(np.concatenate(list(values))).to(device) for values in (parts, positions))
        hidden = hidden_states(self.model, ids, at, self._memory)
        self._memory.grow()
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)

    def _allowed(self, logits: Tensor) -> Tensor:
        """For choosing only: the log probability of what is chosen stays that of the whole distribution."""
        return logits.index_fill(-1, self.forbidden.to(logits.device), -torch.inf) if len(self.forbidden) else logits

    def stop_ids(self) -> set[int]:
        """The tokens that end a response, as the model's own settings say."""
        for config in (getattr(self.model, "generation_config", None), self.model.config):
            stops = getattr(config, "eos_token_id", None)
            if stops is not None:
                return set(stops) if isinstance(stops, list) else {stops}
        return set()

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _forget_after_weight_change(self) -> None:
        # torch counts the in-place changes of a tensor: an optimizer step and a copied-in weight both show
        weights = [(id(parameter), parameter._version) for parameter in self.model.parameters()]
        if weights != self._weights:
            self._memory, self._known, self._weights = KeyValues(), [], weights

    def _places_for(self, contexts: list[np.ndarray]) -> list[int]:
        """A row of the memory for each prompt: the one that has read most of it, so that a rollout finds its own.

        The last token of a prompt is read in any case: the logits after it are wanted.
        """
        shared = shared_prefixes(self._known, [context[:-1] for context in contexts])
        rows: dict[int, int] = {}
        taken: set[int] = set()
        for pair in np.argsort(-shared, axis=None, kind="stable").tolist():
            place, row = divmod(pair, len(self._known))
            if place not in rows and row not in taken:
                rows[place] = row
                taken.add(row)
                self._memory.lengths[row] = int(shared[place, row])
                self._known[row] = self._known[row][: shared[place, row]]
            if len(rows) == min(shared.shape):
                break
        for place in range(len(contexts)):
            if place not in rows:
                rows[place] = len(self._known)
                self._known.append(np.empty(0, dtype=np.int64))
        return [rows[place] for place in range(len(contexts))]


def shared_prefixes(known: Items[np.ndarray], contexts: Items[np.ndarray]) -> np.ndarray:
    """How many tokens each context (a line of the result) has in common with the start of each known row."""
    width = max(map(len, known), default=0)
    table = np.full((len(known), width + 1), -1)  # no token is negative: a row differs at the latest where it ends
    for line, row in zip(table, known, strict=True):
        line[: len(row)] = row
    shared = np.empty((len(contexts), len(known)), dtype=np.int64)
    for line, context in zip(shared, contexts, strict=True):
        size = min(len(context), width)
        padded = np.append(context[:size], -2)  # so that every row differs somewhere
        line[:] = (table[:, : size + 1] != padded).argmax(axis=1)
    return shared


def _choose(logits: Tensor, temperature: float, draws: np.ndarray) -> Tensor:
    """Invert the distribution function at one uniform draw per row, so that a row's tokens depend on its seed alone."""
    if temperature == 0:
        return logits.argmax(-1)
    weights = torch.softmax(at_least_float32(logits).double() / temperature, dim=-1).cumsum(-1)
    points = torch.from_numpy(draws).to(weights.device)[:, None] * weights[:, -1:]
    return torch.searchsorted(weights, points, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
