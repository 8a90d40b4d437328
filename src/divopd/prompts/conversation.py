"""The prompts of one rollout, turn after turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from divopd.environments.environment import Observation
from divopd.prompts.codec import Codec
from divopd.prompts.formats import ONE_MESSAGE
from divopd.prompts.style import PromptStyle


@dataclass(frozen=True)
class Prompt:
    """The context before a response. `truncated`: it did not fit, `ids` are its last tokens (specification §6.1)."""

    ids: list[int]
    truncated: bool


@dataclass(frozen=True)
class Reader:
    """How a model reads a rollout: the look of its prompts, its tokenizer and its chat template.

    The student has one. A teacher has one of its own, or reads the student's prompts (`teacher.prompt`).
    """

    style: PromptStyle
    codec: Codec


class Conversation:
    """Holds what was seen and said in one rollout and builds the prompt of the next turn.

        conversation = Conversation(style, codec, environment.reset(task))
        prompt = conversation.prompt()
        …                                                # a policy responds; the style parses; the environment answers
        conversation.add(response_ids, action, observation)

    With full history the prompt of turn t+1 is prompt + response of turn t, token by token, and more: nothing before is
    encoded again. Only then is that so; with a shorter history every prompt is written anew.
    """

    def __init__(self, style: PromptStyle, codec: Codec, first: Observation) -> None:
        self._style = style
        self._codec = codec
        self._first = first
        self._past: list[tuple[str | None, Observation]] = []  # the action, and what was seen after it
        self._ids = self._head() + codec.text_ids(style.describe_first(first)) + codec.open_response

    def prompt(self) -> Prompt:
        """The prompt of the next turn; if it is longer than `max_prompt_tokens`, its last tokens that fit.

        It is cut at a multiple of a quarter of that: so most cut prompts, too, extend the one before, and what was read
        of it need not be read again.
        """
        if write := ONE_MESSAGE.get(self._style.format):
            past = [(action, self._capped(seen)) for action, seen in self._past]
            ids = self._codec.message_ids(write(self._capped(self._first), past, self._style.kept_actions))
        else:
            ids = self._ids if self._style.history == "full" or not self._past else self._written_anew()
        limit = self._style.max_prompt_tokens
        quarter, excess = max(1, limit // 4), max(0, len(ids) - limit)
        return Prompt(ids[ceil(excess / quarter) * quarter :], truncated=excess > 0)

    def add(self, response_ids: Sequence[int], action: str | None, observation: Observation) -> None:
        """A turn is over: what was answered (by the student or by the teacher in its place) and what was seen then."""
        self._past.append((action, observation))
        response_ids, close = self._codec.adopted(response_ids), self._codec.close_response
        if response_ids and response_ids[-1] == self._codec.stop:
            close = close[1:]  # the response has ended itself
        seen = self._codec.text_ids(self._style.describe(observation))
        self._ids = [*self._ids, *response_ids, *close, *seen, *self._codec.open_response]

    def _capped(self, observation: Observation) -> Observation:
        return replace(observation, text=self._style.capped(observation.text))

    def _head(self) -> list[int]:
        if not self._style.system:
            return list(self._codec.open_user_first)
        return self._codec.open_system + self._codec.text_ids(self._style.system) + self._codec.open_user

    def _written_anew(self) -> list[int]:
        """The first observation, the last actions with what was seen after them, and what is seen now."""
        kept = self._past[-self._style.kept_actions :] if self._style.kept_actions else []
        lines = [self._style.capped(self._first.text)]
        if len(kept) < len(self._past):
            lines.append(f"({len(self._past) - len(kept)} earlier actions are not shown)")
        for action, seen in kept[:-1]:
            lines += [f"> {action or '(no action)'}", self._style.capped(seen.text)]
        if kept:
            lines.append(f"> {kept[-1][0] or '(no action)'}")
        lines.append(self._style.describe(self._past[-1][1]))
        return self._head() + self._codec.text_ids("\n".join(lines)) + self._codec.open_response
