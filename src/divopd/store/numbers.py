"""A list of numbers as it lies in a payload: bytes until somebody looks at it."""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

BYTES = {"i": 4, "d": 8, "B": 1}  # by the code of the module struct
KINDS = {"i": "<i4", "d": "<f8", "B": "u1"}  # as numpy says it


@cache
def _reader(code: str) -> Callable[[bytes], Any]:
    import numpy as np  # here only: whoever imports divopd need not wait for it

    return partial(np.frombuffer, dtype=np.dtype(KINDS[code]))


class Numbers(Sequence[Any]):
    """Reads like the list that was stored, and equals it; `numpy.asarray` of it copies nothing.

    Most of a store is never looked at number by number: a batch becomes arrays, a count needs lengths.
    """

    __slots__ = ("code", "raw")

    def __init__(self, code: str, raw: bytes) -> None:
        self.code, self.raw = code, raw

    def __len__(self) -> int:
        return len(self.raw) // BYTES[self.code]

    def tolist(self) -> list[Any]:
        return list(struct.unpack(f"<{len(self)}{self.code}", self.raw))

    def __iter__(self) -> Iterator[Any]:
        return iter(struct.unpack(f"<{len(self)}{self.code}", self.raw))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self.tolist()[place]
        return struct.unpack_from(f"<{self.code}", self.raw, BYTES[self.code] * range(len(self))[int(place)])[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Numbers):
            return NotImplemented
        return self.tolist() == (other.tolist() if isinstance(other, Numbers) else other)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as a list

    def __repr__(self) -> str:
        return repr(self.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        values = _reader(self.code)(self.raw)
        if dtype is not None and values.dtype != dtype:
            return values.astype(dtype)
        return values.copy() if copy else values
