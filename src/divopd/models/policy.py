"""What a policy can do: respond to prompts and score tokens. Students and teachers are policies."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from divopd.errors import AlignmentError
from divopd.models.packing import Sequence as TokenSequence
from divopd.models.packing import make_row, merge_rows

Weights = Mapping[str, Any]  # tensors by name; who gives and who takes them know what they are


@dataclass(frozen=True, eq=False)
class Response:
    """Sampled tokens, the stop token included if one was sampled, and their log probabilities under the policy itself.

    The log probabilities are those of the whole distribution at temperature 1, whatever the sampling temperature was
    and whichever ids were forbidden: these are what the learner finds again, and what the objective and the
    disagreement compare with the teacher's.
    """

    ids: list[int]
    logprobs: np.ndarray


class Policy(Protocol):
    """A language model as an explorer, a teacher and an evaluation use it."""

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        """One response per prompt. The same prompt and seed give the same response in any company, to rounding."""
        ...

    def score(
        self, sequences: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[np.ndarray]]:
        """Log probabilities of the tokens start … end - 1 of each span of each sequence, each sequence read once."""
        ...


class Batching(Protocol):
    """A model that answers many at once, each as soon as it can: nobody waits for the longest answer.

    Weights change only while nothing is pending.
    """

    def add(self, key: Hashable, prompt: Sequence[int], *, temperature: float, max_tokens: int, seed: int) -> None:
        """Begin a response. One response at a time under a key; the next one under it usually continues it."""
        ...

    def step(self) -> list[tuple[Hashable, Response]]:
        """Go on for about the time of one token; the responses that ended, by their keys."""
        ...

    @property
    def pending(self) -> int:
        """Responses that were added and that no step has returned."""
        ...


def score_merged(
    sequences: Sequence[Sequence[int]],
    spans: Sequence[Sequence[tuple[int, int]]],
    read: Callable[[list[TokenSequence]], Iterable[np.ndarray]],
) -> list[list[np.ndarray]]:
    """`Policy.score` by a way to read whole sequences; those that continue one another are read once.

    `read` returns a value a token of each sequence; before its first wanted position they are not looked at.
    """
    wanted = [(ids, span) for ids, each in zip(sequences, spans, strict=True) for span in each]
    merged = merge_rows([make_row(ids[:start], ids[start:end]) for ids, (start, end) in wanted])
    scores = [np.empty(0)] * len(wanted)
    for sequence, values in zip(merged, read(merged), strict=True):
        for span in sequence.spans:
            scores[span.row] = values[span.scored]
    left = iter(scores)
    return [list(islice(left, len(each))) for each in spans]


class Vocabulary:
    """The ids that a model knows: those of its tokenizer, not the rows of its embedding, which may be padded."""

    def __init__(self, tokenizer: Any, *, rows: int) -> None:
        """A model without a tokenizer is taken to know all rows of its embedding."""
        self.known = np.full(rows, tokenizer is None)
        if tokenizer is not None:
            ids = np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64)
            self.known[ids[ids < rows]] = True

    @property
    def unknown(self) -> list[int]:
        """Rows of the embedding that no token has."""
        return np.flatnonzero(~self.known).tolist()

    def refuse_foreign(self, ids: np.ndarray) -> None:
        """Raise an AlignmentError at the first id that the model does not know."""
        inside = (ids >= 0) & (ids < len(self.known))
        foreign = ~inside | ~self.known[np.where(inside, ids, 0)]
        if foreign.any():
            raise AlignmentError(
                f"token id {ids[foreign][0]} is outside the model's vocabulary of {self.known.sum()}; check that the "
                "turns were made with this model's tokenizer"
            )
