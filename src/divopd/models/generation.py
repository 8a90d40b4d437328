"""Sampling responses with the memory of earlier turns: of a rollout's next prompt only the new tokens are read."""

from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divopd.errors import InputError
from divopd.models.fused import FusedDecoder
from divopd.models.key_values import KeyValues
from divopd.models.logprobs import at_least_float32, hidden_states, log_softmax
from divopd.models.packing import shared_prefix, shared_prefixes
from divopd.models.policy import Response

SMALL = 2**24  # weights of a model whose passes cost what their calls cost, hardly what they compute
PATIENCE = 4  # tokens: the longest that a new prompt of a small model waits for others, to be read with them
WORTH_A_PASS = 32  # tokens that several prompts begin with


@dataclass(eq=False)
class _UnderWay:
    """A response that is being written: what was asked for, and what there is of it so far."""

    key: Hashable
    context: np.ndarray
    temperature: float
    draws: np.ndarray  # one number for each token that it may have
    owner: Hashable  # whose memory it goes on with; None: the fittest
    row: int = -1  # of the memory, once the prompt is read
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Generator:
    """Responds to prompts with one model, all at once or each as it is added.

    Keys and values of what was read stay while the weights do: they are dropped as soon as a weight changes.
    """

    def __init__(
        self, model: Any, *, read_at_once: int, forbidden: Items[int] = (), fused: FusedDecoder | None = None
    ) -> None:
        """`read_at_once` bounds the prompt tokens of one forward pass; `forbidden` ids are never sampled."""
        self.model = model
        self._fused = fused
        self.read_at_once = read_at_once
        self.forbidden = torch.tensor(sorted(forbidden), dtype=torch.int64)
        self._memory = KeyValues()
        self._known: list[np.ndarray] = []  # the tokens that each row of the memory has read
        self._owners: list[Hashable] = []  # of those rows
        self._weights: list[tuple[int, int]] = []
        self._fresh: list[_UnderWay] = []  # whose prompts are not read, or not to their ends
        self._going: list[_UnderWay] = []
        small = sum(parameter.numel() for parameter in model.parameters()) < SMALL
        self._patience = PATIENCE if small else 0
        self._waited = 0  # steps in which a new prompt waited for others

    def respond(
        self, prompts: Items[Items[int]], *, temperature: float, max_tokens: int, seeds: Items[int]
    ) -> list[Response]:
        """See TransformersPolicy.respond."""
        assert not self.pending, "responses that were added are under way: step until they are there"
        if max_tokens < 1:
            return [Response([], np.empty(0)) for _ in prompts]
        wishes = zip(prompts, seeds, strict=True)
        self._fresh = [_new(n, ids, temperature, max_tokens, seed, owner=None) for n, (ids, seed) in enumerate(wishes)]
        made: dict[Hashable, Response] = {}
        while self.pending:
            made.update(self.step())
        return [made[place] for place in range(len(prompts))]

    def add(self, key: Hashable, prompt: Items[int], *, temperature: float, max_tokens: int, seed: int) -> None:
        """Begin a response, which a later step returns under this key.

        A key has memory of its own: what is asked under it again is taken to go on with what was asked before.
        """
        self._fresh.append(_new(key, prompt, temperature, max_tokens, seed, owner=key))

    @property
    def pending(self) -> int:
        """Responses that were added and that no step has returned."""
        return len(self._fresh) + len(self._going)

    @torch.inference_mode()
    def step(self) -> list[tuple[Hashable, Response]]:
        """Write one token of every response under way; those that ended with it, by their keys.

        New prompts are read in the same pass, `read_at_once` tokens of them: nobody waits for another's prompt. They
        wait a few steps for more of them if the model is small: there a pass that reads costs more than one that only
        writes. A larger model's passes are too dear for that.
        """
        if not self.pending:
            return []
        if new := [one for one in self._fresh if one.row < 0]:
            self._place(new)
        for line in (self._fresh, self._going):
            line.sort(key=lambda one: one.row)  # as they lie in the memory
        if self._going:
            writing, logits = self._read_beside_writing()
        else:
            writing, self._fresh, self._waited = self._fresh, [], 0
            logits = self._read([one.row for one in writing], [one.context for one in writing])
        self._write(writing, logits)
        stops = self.stop_ids()
        over = [one for one in writing if one.ids[-1] in stops or len(one.ids) == len(one.draws)]
        ended = set(map(id, over))
        self._going = [one for one in writing if id(one) not in ended]
        for one in over:
            self._known[one.row] = np.append(one.context, one.ids[:-1])
        return [(one.key, Response(one.ids, np.asarray(one.logprobs))) for one in over]

    def _place(self, new: list[_UnderWay]) -> None:
        """Give new prompts their rows of the memory: their owners', or those that have read most of them."""
        if not self._going:  # under a response no weight may change
            self._forget_after_weight_change()
        own = {owner: row for row, owner in enumerate(self._owners) if owner is not None}
        for one in new:
            if (row := own.get(one.owner)) is not None:
                one.row = row
                self._keep(row, shared_prefix(self._known[row], one.context[:-1]))
        others = [one for one in new if one.row < 0]
        rows = self._places_for([one.context for one in others], [one.owner for one in others]) if others else []
        for one, row in zip(others, rows, strict=True):
            one.row = row
        self._memory.make_room(len(self._known), max(len(one.context) + len(one.draws) for one in new))
        self._copy_from_others(new)
        if not self._going:  # nobody waits for a pass over what others need
            self._read_beginnings(new)

    def _copy_from_others(self, new: list[_UnderWay]) -> None:
        """What another row has read already of a new prompt, instructions above all, is copied from there."""
        read = list(self._known)
        for one in self._going + self._fresh:
            if one.row >= 0:
                read[one.row] = np.append(one.context, np.asarray(one.ids, dtype=np.int64))
        lengths = self._memory.lengths
        shared = shared_prefixes(
            [ids[:n] for ids, n in zip(read, lengths, strict=False)], [o.context[:-1] for o in new]
        )
        for one, tokens in zip(new, shared, strict=True):
            source = int(tokens.argmax())
            if tokens[source] > lengths[one.row]:
                self._memory.copy(source, one.row, int(tokens[source]))

    def _read_beginnings(self, new: list[_UnderWay]) -> None:
        """Read what neighbours in lexicographic order begin with for the first of them, and copy it to the second."""
        lengths = self._memory.lengths
        for one, other in pairwise(sorted(new, key=lambda one: one.context.tobytes())):
            shared = shared_prefix(one.context[:-1], other.context[:-1])
            if shared - max(lengths[one.row], lengths[other.row]) >= WORTH_A_PASS:
                while (start := lengths[one.row]) < shared:
                    piece = one.context[start : min(shared, start + self.read_at_once)]
                    self._forward([one.row], [piece], together=0)
            if (there := min(shared, lengths[one.row])) > lengths[other.row]:
                self._memory.copy(one.row, other.row, there)

    def _read_beside_writing(self) -> tuple[list[_UnderWay], Tensor]:
        """One pass over the last token of what is being written and the next tokens of new prompts.

        The answer: all that can be written at now, which are those prompts, too, that are read to their ends.
        """
        pieces, lengths, room = list[np.ndarray](), self._memory.lengths, self.read_at_once
        fresh, later = ([], self._fresh) if self._wait_for_more() else (self._fresh, [])
        for one in fresh:
            pieces.append(one.context[lengths[one.row] : lengths[one.row] + room])
            room -= len(pieces[-1])
        last = [np.asarray(one.ids[-1:]) for one in self._going]
        hidden = self._forward([one.row for one in self._going + fresh], last + pieces, together=len(last))
        ends = len(last) - 1 + np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        read = [len(one.context) == lengths[one.row] for one in fresh]
        begun = [one for one, whole in zip(fresh, read, strict=True) if whole]
        self._fresh = [one for one, whole in zip(fresh, read, strict=True) if not whole] + later
        if not later:  # what is read in parts has waited
            self._waited = self._patience if self._fresh else 0
        at = torch.from_numpy(np.append(np.arange(len(last)), ends[read])).to(hidden.device)
        return self._going + begun, self._logits(hidden[at] if pieces else hidden)

    def _wait_for_more(self) -> bool:
        """Whether new prompts wait: there are fewer of them than responses under way, and not for long."""
        if not self._fresh or len(self._fresh) >= len(self._going) or self._waited == self._patience:
            return False
        self._waited += 1
        return True

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
            hidden = self._forward(rows, parts, together=len(rows) if all(n == 1 for n in new) else 0)
            ends = np.cumsum(new) - 1
            finished = [place for place, (left, n) in enumerate(zip(todo, new, strict=True)) if 0 < left == n]
            for place, place_logits in zip(finished, self._logits(hidden[ends[finished]]), strict=True):
                logits[place] = place_logits
        return torch.stack(logits)

    def _write(self, writing: list[_UnderWay], logits: Tensor) -> None:
        """Sample the next token of each, with its own draw."""
        draws = np.asarray([one.draws[len(one.ids)] for one in writing])
        tokens = _choose(self._allowed(logits), [one.temperature for one in writing], draws)
        chosen = log_softmax(logits).gather(-1, tokens[:, None])[:, 0].double().cpu()
        for one, token, logprob in zip(writing, tokens.tolist(), chosen.tolist(), strict=True):
            one.ids.append(token)
            one.logprobs.append(logprob)

    def _forward(self, rows: list[int], parts: Items[np.ndarray], *, together: int) -> Tensor:
        """Read one part of every row (it may be empty) and count it in; the first, `together`, are of one token."""
        device = next(self.model.parameters()).device
        positions = [np.arange(len(part)) + self._memory.lengths[row] for row, part in zip(rows, parts, strict=True)]
        self._memory.expect(rows, [len(part) for part in parts], together=together)
        ids, at = (torch.from_numpy(np.concatenate(list(values))).to(device) for values in (parts, positions))
        if self._fused is not None and self._fused.fits():
            hidden = self._fused(ids, at, self._memory)
        else:
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
            assert not self._going, "a weight changed while a response was under way"
            self._memory, self._known, self._owners, self._weights = KeyValues(), [], [], weights

    def _places_for(self, contexts: list[np.ndarray], owners: list[Hashable]) -> list[int]:
        """A row of the memory for each prompt: the one that has read most of it, so that a rollout finds its own.

        A row that belongs to another owner is left alone: its rollout will come back, and would have to read all again.
        The last token of a prompt is read in any case: the logits after it are wanted.
        """
        shared = shared_prefixes(self._known, [context[:-1] for context in contexts])
        rows: dict[int, int] = {}
        taken = {one.row for one in self._going + self._fresh}
        for pair in np.argsort(-shared, axis=None, kind="stable").tolist():
            place, row = divmod(pair, len(self._known))
            ours = owners[place] is None or self._owners[row] in (None, owners[place])
            if place not in rows and row not in taken and ours:
                rows[place] = row
                taken.add(row)
                self._keep(row, int(shared[place, row]))
            if len(rows) == len(contexts):
                break
        for place in range(len(contexts)):
            if place not in rows:
                rows[place] = len(self._known)
                self._known.append(np.empty(0, dtype=np.int64))
                self._owners.append(None)
            self._owners[rows[place]] = owners[place]
        return [rows[place] for place in range(len(contexts))]

    def _keep(self, row: int, tokens: int) -> None:
        """Forget what a row has read behind its first so many tokens."""
        self._memory.lengths[row], self._known[row] = tokens, self._known[row][:tokens]


def _new(
    key: Hashable, prompt: Items[int], temperature: float, max_tokens: int, seed: int, *, owner: Hashable
) -> _UnderWay:
    context = np.asarray(prompt, dtype=np.int64)
    if not len(context):
        raise InputError("a prompt has no token; a response needs at least one token before it")
    return _UnderWay(key, context, temperature, np.random.Generator(np.random.Philox(seed)).random(max_tokens), owner)


def _choose(logits: Tensor, temperatures: Items[float], draws: np.ndarray) -> Tensor:
    """Invert the distribution function at one uniform draw per row, so that a row's tokens depend on its seed alone."""
    if not any(temperatures):
        return logits.argmax(-1)
    # where one row alone has the temperature 0, the others' draws must not change: it is divided by 1 and overruled
    divisors = [one or 1.0 for one in temperatures]
    tempered = at_least_float32(logits)
    if any(one != 1.0 for one in divisors):
        tempered = tempered / tempered.new_tensor(divisors)[:, None]
    weights = torch.softmax(tempered, dim=-1).cumsum(-1, dtype=torch.float64)
    points = torch.from_numpy(draws).to(weights.device)[:, None] * weights[:, -1:]
    tokens = torch.searchsorted(weights, points, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    if all(temperatures):
        return tokens
    greedy = torch.tensor([not one for one in temperatures], device=logits.device)
    return torch.where(greedy, logits.argmax(-1), tokens)
