"""A policy of a few thousand parameters that reads and writes tokens, and a world for it to talk to."""

from random import Random

import torch
from torch import Tensor, nn

TOKENS, RESPONSE = 12, 4  # the vocabulary; tokens of a response


class TinyPolicy(nn.Module):
    """A recurrent network over tokens; `sharpness` makes a teacher that knows what it wants."""

    def __init__(self, seed: int, sharpness: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(TOKENS, 24)
        self.memory = nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, TOKENS)
        self.sharpness = sharpness

    def forward(self, tokens: Tensor) -> Tensor:
        """Log probabilities of the next token after each one."""
        states, _ = self.memory(self.embedding(tokens))
        return torch.log_softmax(self.sharpness * self.head(states), dim=-1)

    def logprobs(self, tokens: Tensor, response: int) -> Tensor:
        """Log probabilities of the last `response` tokens of each row."""
        scores = self(tokens[:, :-1])[:, -response:]
        return scores.gather(-1, tokens[:, -response:, None]).squeeze(-1)

    @torch.no_grad()
    def respond(self, prompt: list[int]) -> list[int]:
        tokens = list(prompt)
        for _ in range(RESPONSE):
            tokens.append(int(torch.multinomial(self(torch.tensor([tokens]))[0, -1].exp(), 1)))
        return tokens[len(prompt) :]


class Talk:
    """A world of tokens: it answers a response with one token, and some talks are much longer than others."""

    def __init__(self, task: int) -> None:
        self.random = Random(task)
        self.heard = [self.random.randrange(TOKENS) for _ in range(3)]
        self.turns_left = self.random.choice([2, 3, 4, 20])

    def step(self, response: list[int]) -> bool:
        """Whether it goes on."""
        self.heard = [*self.heard, *response, sum(response) % TOKENS][-16:]  # what a prompt has room for
        self.turns_left -= 1
        return self.turns_left > 0
