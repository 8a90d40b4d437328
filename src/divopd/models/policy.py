"""What a policy can do: respond to prompts and score tokens. Students and teachers are policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, eq=False)
class Response:
    """Sampled tokens, the stop token included if one was sampled, and their log probabilities under the policy itself.

    The log probabilities are those at temperature 1 whatever the sampling temperature was: it is these that the
    objective and the disagreement compare with the teacher's.
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
