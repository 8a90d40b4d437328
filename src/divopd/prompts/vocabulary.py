"""Token ids that one model writes and another one's tokenizer does not have (specification §6.2).

What counts is the tokenizer with its added tokens, never the rows of an embedding: those are padded, so a model has
rows for ids that it has never seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Spelling = Mapping[int, Sequence[int]]  # of each foreign id: the reader's own ids of its text


def foreign_ids(writer: Any, reader: Any, *, rows: int = 0) -> dict[int, list[int]]:
    """The ids of the writer's tokenizer that the reader's does not have, each with how the reader spells its text.

    `rows` of the writer's embedding beyond its tokenizer are foreign too: a model may sample them. They have no text.
    """
    known, texts = set(reader.get_vocab().values()), {id_: text for text, id_ in writer.get_added_vocab().items()}
    written = {*writer.get_vocab().values(), *range(rows)}
    return {
        id_: list(reader.encode(texts[id_], add_special_tokens=False)) if id_ in texts else []
        for id_ in sorted(written - known)
    }


def spelled_out(ids: Iterable[int], spelling: Spelling) -> list[int]:
    """The same text in ids that the reader has."""
    return [piece for id_ in ids for piece in spelling.get(id_, (id_,))]


def named(ids: Iterable[int], tokenizer: Any, *, at_most: int = 4) -> str:
    """Some ids with their tokens, for people."""
    texts = {id_: text for text, id_ in tokenizer.get_vocab().items()}
    shown = [f"{texts[id_]} ({id_})" for id_ in dict.fromkeys(ids) if id_ in texts]
    return ", ".join(shown[:at_most]) + (", …" if len(shown) > at_most else "")
