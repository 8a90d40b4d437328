"""Sampling responses with the memory of earlier turns: of a rollout's next prompt only the new tokens are read."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divopd.errors import InputError
from divopd.models.attention import KeyValues
from divopd.models.logprobs import at_least_float32, hidden_states, log_softmax
from divopd.models.policy import Response

KEPT_BYTES = 2**30  # keys and values of all rollouts together that wait for the next turn


@dataclass(frozen=True, eq=False)
class Read:
    """Tokens that were read before, and what every layer remembers of them."""

    ids: np.ndarray
    layers: dict[int, tuple[Tensor, Tensor]]

    @cached_property
    def bytes(self) -> int:
        return sum(key.nbytes + value.nbytes for key, value in self.layers.values())

    @cached_property
    def end(self) -> tuple[int, int]:
        """How many tokens there are, and the last one."""
        return len(self.ids), int(self.ids[-1])


class Generator:
    """Responds to prompts with one model. What it remembers is dropped as soon as a weight changes."""

    def __init__(self, model: Any, *, read_at_once: int) -> None:
        """`read_at_once` bounds the prompt tokens of one forward pass."""
        self.model = model
        self.read_at_once = read_at_once
        self._kept: list[Read] = []  # the least recently used first
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
        batch = KeyValues(len(contexts), max(map(len, contexts)) + max_tokens)
        for row, context in enumerate(contexts):
            self._remember(batch, row, context)
        logits = self._read(batch, contexts)
        draws = np.stack([np.random.Generator(np.random.Philox(seed)).random(max_tokens) for seed in seeds])
        return self._write(batch, contexts, logits, temperature=temperature, draws=draws)

    def _read(self, batch: KeyValues, contexts: list[np.ndarray]) -> Tensor:
        """Read what is not known yet of the prompts; the logits after each."""
        logits: list[Tensor] = [torch.empty(0)] * len(contexts)
        while any(todo := [len(c) - known for c, known in zip(contexts, batch.lengths, strict=True)]):
            room = self.read_at_once
            new = []
            for left in todo:
                new.append(min(left, room))
                room -= new[-1]
            parts = [c[start : start + n] for c, start, n in zip(contexts, batch.lengths, new, strict=True)]
            hidden = self._forward(batch, parts)
            ends = np.cumsum(new) - 1
            finished = [row for row, (left, n) in enumerate(zip(todo, new, strict=True)) if 0 < left == n]
            for row, row_logits in zip(finished, self._logits(hidden[ends[finished]]), strict=True):
                logits[row] = row_logits
        return torch.stack(logits)

    def _write(
        self, batch: KeyValues, contexts: list[np.ndarray], logits: Tensor, *, temperature: float, draws: np.ndarray
    ) -> list[Response]:
        """Sample token by token. Rows that are done leave the batch when half of it is done."""
        responses = [Response([], np.empty(0)) for _ in contexts]
        logprobs: list[list[float]] = [[] for _ in contexts]
        rows = list(range(len(contexts)))  # the prompt of each row of the batch
        stops, done = self._stop_ids(), set[int]()
        for step in range(draws.shape[1]):
            tokens = _choose(logits, temperature, draws[rows, step])
            chosen = log_softmax(logits).gather(-1, tokens[:, None])[:, 0].double().cpu()
            ids = tokens.cpu().numpy()
            for place, row in enumerate(rows):
                if row in done:
                    continue
                responses[row].ids.append(int(ids[place]))
                logprobs[row].append(float(chosen[place]))
                if int(ids[place]) in stops or step + 1 == draws.shape[1]:
                    done.add(row)
                    self._keep(Read(np.append(contexts[row], responses[row].ids[:-1]), batch.row(place)))
            if len(done) == len(contexts):
                break
            going = [place for place, row in enumerate(rows) if row not in done]
            if 2 * len(going) <= len(rows):
                batch.keep(going)
                rows, ids = [rows[place] for place in going], ids[going]
            logits = self._logits(self._forward(batch, list(ids[:, None])))
        return [Response(r.ids, np.asarray(values)) for r, values in zip(responses, logprobs, strict=True)]

    def _forward(self, batch: KeyValues, parts: Items[np.ndarray]) -> Tensor:
        """Read one part of every row (it may be empty) and count it in."""
        device = next(self.model.parameters()).device
        positions = [np.arange(len(part)) + start for part, start in zip(parts, batch.lengths, strict=True)]
        batch.expect([len(part) for part in parts])
        ids, at = (torch.from_numpy(np.concatenate(list(values))).to(device) for values in (parts, positions))
        hidden = hidden_states(self.model, ids, at, batch)
        batch.grow()
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(hidden)

    def _stop_ids(self) -> set[int]:
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
            self._kept, self._weights = [], weights

    def _remember(self, batch: KeyValues, row: int, context: np.ndarray) -> None:
        """Fill a row with the longest beginning of the context that was read before, all but its last token at most."""
        best, shared = None, 0
        for read in reversed(self._kept):
            if shared == len(context) - 1:
                break
            if len(read.ids) <= shared or read.ids[shared] != context[shared]:
                continue  # a longer common beginning needs this token, and most reads do not have it
            if (size := common_prefix(read.ids, context[:-1])) > shared:
                best, shared = read, size
        if best is not None:
            batch.fill(row, best.layers, shared)
            self._kept.remove(best)
            self._kept.append(best)

    def _keep(self, read: Read) -> None:
        # of a turn before this one the last token stands in this one too; of unrelated ones it mostly does not
        ends = set(enumerate(read.ids.tolist(), start=1))
        self._kept = [old for old in self._kept if old.end not in ends or not _begins(old.ids, read.ids)]
        self._kept.append(read)
        excess = sum(kept.bytes for kept in self._kept) - KEPT_BYTES
        while excess > 0:
            excess -= self._kept.pop(0).bytes


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two sequences have in common at the start."""
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    return int(differ.argmax()) if differ.any() else size


def _begins(a: np.ndarray, b: np.ndarray) -> bool:
    return len(a) <= len(b) and np.array_equal(a, b[: len(a)])


def _choose(logits: Tensor, temperature: float, draws: np.ndarray) -> Tensor:
    """Invert the distribution function at one uniform draw per row, so that a row's tokens depend on its seed alone."""
    if temperature == 0:
        return logits.argmax(-1)
    weights = torch.softmax(at_least_float32(logits).double() / temperature, dim=-1).cumsum(-1)
    points = torch.from_numpy(draws).to(weights.device)[:, None] * weights[:, -1:]
    return torch.searchsorted(weights, points, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
