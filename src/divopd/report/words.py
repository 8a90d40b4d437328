"""Token ids as text, by the tokenizer of the run's student; as numbers where that is not at hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from divopd.errors import MissingExtraError, UnknownNameError
from divopd.models.model_files import model_folder

TOKENIZER = "tokenizer.json"


class Words:
    """Reads token ids. `missing` says why they are shown as numbers, or is empty."""

    def __init__(self, tokenizer: Any, *, missing: str = "") -> None:
        self._tokenizer = tokenizer
        self.missing = missing
        added = tokenizer.get_added_tokens_decoder() if tokenizer else {}
        self.marks = frozenset(id_ for id_, token in added.items() if token.special)
        self._pieces: dict[int, str] = {}

    def text(self, ids: Sequence[int]) -> str:
        """The text of these ids, control tokens left out."""
        if self._tokenizer is None:
            return " ".join(map(str, ids))
        return str(self._tokenizer.decode([id_ for id_ in ids if id_ not in self.marks], skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token by itself, control tokens too. A letter of several tokens cannot be shown in its parts."""
        return [self._piece(id_) for id_ in ids]

    def _piece(self, id_: int) -> str:
        if id_ not in self._pieces:
            known = self._tokenizer and self._tokenizer.decode([id_], skip_special_tokens=False)
            self._pieces[id_] = known or str(id_)
        return self._pieces[id_]


def words_of(folder: Path, config: Mapping[str, Any]) -> Words:
    """The tokenizer beside the run, or that of the model which it names."""
    model = str(config.get("student", {}).get("model", ""))
    places = [folder, *_model_folders(model)]
    file = next((place / TOKENIZER for place in places if (place / TOKENIZER).is_file()), None)
    if file is None:
        return Words(
            None, missing=f"the run has no {TOKENIZER}, and its student's ({model or 'none named'}) is not here"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return Words(None, missing=str(MissingExtraError("tokenizers", "train")))
    try:
        return Words(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing more precise
        return Words(None, missing=f"{file} cannot be read ({error})")


def _model_folders(model: str) -> list[Path]:
    """Where a model may lie."""
    try:
        return [model_folder(model)] if model else []
    except UnknownNameError:
        return []
