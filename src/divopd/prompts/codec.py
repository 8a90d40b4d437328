"""Text to token ids such that an environment cannot forge a role.

A prompt is put together from two kinds of pieces. Control pieces (who speaks, where a response ends) come from the
tokenizer's own chat template and are encoded once, with special tokens. Everything else is plain text: a control token
that is merely spelled in it stays ordinary characters. Pieces are encoded one by one, so the ids of an earlier piece
never change when a later one is added.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from divopd.errors import AlignmentError
from divopd.prompts.template_bounds import check_template
from divopd.prompts.vocabulary import Spelling, spelled_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CUT = "\ufdd0"  # no character: Unicode keeps it for uses such as this one
# what stands for the messages while the template is read; letters only, so that no template trims or escapes them
_SYSTEM, _USER, _ANSWER, _LATER = "DIVOPDSYSTEM", "DIVOPDUSER", "DIVOPDANSWER", "DIVOPDLATER"


def _any_of(words: Iterable[str]) -> "re.Pattern[str]":
    """Finds any of the words, the longest one where several fit."""
    return re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)) or "(?!)")


class Codec:
    """A Hugging Face tokenizer as prompts need it. AlignmentError if its chat template is missing or out of order.

    `open_system` + text + `open_user` + text + `open_response` is the first prompt (`open_user_first` + text +
    `open_response` without a system text); `close_response` stands between a response and the next observation.
    A response ends with `stop`. `template`: arguments of the chat template, such as `enable_thinking`. `spelling`: ids
    of the other model that this tokenizer does not have.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        *,
        template: Mapping[str, Any] | None = None,
        spelling: Spelling | None = None,
    ) -> None:
        self._tokenizer, self._template, self._spelling = tokenizer, dict(template or {}), spelling or {}
        system, user = {"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}
        answer, later = {"role": "assistant", "content": _ANSWER}, {"role": "user", "content": _LATER}
        whole = self._render([system, user, answer, later], (_SYSTEM, _USER, _ANSWER, _LATER))
        pieces = [self._control_ids(piece) for piece in whole]
        self.open_system, self.open_user, _, self.close_response, self.open_response = pieces
        first = self._render([user], (_USER,))[0]
        self.open_user_first = self._control_ids(first)
        if not self.close_response or not self.open_response:
            raise AlignmentError(
                "the chat template puts nothing around a response; expected marks that end and begin it"
            )
        self.stop = self.close_response[0]
        control = self._find_control_tokens([*pieces, self.open_user_first])
        self._control = control
        self._forged = frozenset(control.values())
        self._spelled = _any_of(control)
        self._added = _any_of(tokenizer.get_added_vocab())
        # the template's text before a lone user message, without the plain words after its last control token
        end = max((found.end() for found in self._spelled.finditer(first)), default=0)
        self._before_message, self._message_opens = self._control_ids(first[:end]), first[end:]

    def text_ids(self, text: str) -> list[int]:
        """Ids of plain text. Whatever the text spells, no control token is among them."""
        clean = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no text
        ids = [id_ for piece in self._cut(clean) for id_ in self._tokenizer.encode(piece, add_special_tokens=False)]
        # a normaliser may still have made one out of look-alike characters: it is left out
        return [id_ for id_ in ids if id_ not in self._forged]

    def message_ids(self, text: str) -> list[int]:
        """The prompt that is this one user message, encoded as the tokenizer encodes the whole template.

        A text that begins with a line break merges with the break before it: encoded piece by piece it would be
        other tokens than those on which a model with such a format was trained.
        """
        return [*self._before_message, *self.text_ids(self._message_opens + text), *self.open_response]

    def disarmed(self, text: str, *, strictly: bool) -> str:
        """Text for a chat template: a control token that it spells has a mark in it, at which `rendered_ids` cuts.

        `strictly`: so has every other added token, such as the tags around a tool's result.
        """
        clean = text.encode("utf-8", "replace").decode("utf-8").replace(CUT, "\ufffd")
        spelled = self._added if strictly else self._spelled
        return spelled.sub(lambda found: found[0][0] + CUT + found[0][1:], clean)

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str:
        """What the chat template writes for these messages, up to where a response begins."""
        return str(
            self._tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=True, **self._template
            )
        )

    def rendered_ids(self, text: str) -> list[int]:
        """Ids of what a chat template wrote around disarmed texts: its control tokens, and no others."""
        return [id_ for piece in text.split(CUT) for id_ in self._piece_ids(piece)]

    def _piece_ids(self, piece: str) -> list[int]:
        ids = self._control_ids(piece)
        if [id_ for id_ in ids if id_ in self._forged] == [
            self._control[word] for word in self._spelled.findall(piece)
        ]:
            return ids
        # a normaliser made a control token out of look-alike characters: it is left out
        exact: list[int] = []
        start = 0
        for found in self._spelled.finditer(piece):
            exact += [*self._plain_ids(piece[start : found.start()]), self._control[found[0]]]
            start = found.end()
        return exact + self._plain_ids(piece[start:])

    def _plain_ids(self, text: str) -> list[int]:
        return [id_ for id_ in self._control_ids(text) if id_ not in self._forged]

    def response_ids(self, text: str) -> list[int]:
        """A response as a policy would sample it: plain text and the stop token."""
        return [*self.text_ids(text), self.stop]

    def adopted(self, ids: Sequence[int]) -> list[int]:
        """A response as this tokenizer can write it: an id of the other model that it lacks is spelled out."""
        return spelled_out(ids, self._spelling)

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, without control tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _cut(self, text: str) -> Iterator[str]:
        """The text in pieces, cut after the first character of each spelled control token."""
        start = 0
        for found in self._spelled.finditer(text):
            yield text[start : found.start() + 1]
            start = found.start() + 1
        yield text[start:]

    def _render(self, messages: list[dict[str, str]], marks: Sequence[str]) -> list[str]:
        """What the template puts before, between and after the messages."""
        if not self._tokenizer.chat_template:
            raise AlignmentError("the tokenizer has no chat template; set tokenizer.chat_template before training")
        special = {name: str(word) for name, word in self._tokenizer.special_tokens_map.items()}
        try:
            template = self._tokenizer.get_chat_template()
            check_template(template, messages, special=special, arguments=self._template)
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._template
            )
        except AlignmentError:
            raise
        except Exception as error:  # a template raises what it likes: it is a program of somebody else
            raise AlignmentError(
                f"the chat template refuses system, user and assistant messages: {type(error).__name__}: {error}"
            ) from None
        pieces = re.split("|".join(marks), str(text))
        if len(pieces) != len(marks) + 1:
            raise AlignmentError(
                f"the chat template shows {len(pieces) - 1} of {len(marks)} messages; "
                "expected system, user and assistant messages, each once and in order"
            )
        return pieces

    def _control_ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _find_control_tokens(self, pieces: Sequence[Sequence[int]]) -> dict[str, int]:
        """Added tokens that are special or that the template uses, by their text; the unknown token is none of them."""
        used = {id_ for piece in pieces for id_ in piece} | set(self._tokenizer.all_special_ids)
        used.discard(self._tokenizer.unk_token_id)  # pyright: ignore[reportArgumentType]
        return {text: id_ for text, id_ in self._tokenizer.get_added_vocab().items() if id_ in used}
