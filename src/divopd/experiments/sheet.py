"""A table of the paper as data: printed in the terminal, written as Markdown and as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divopd.report.seeds import Interval

MISSING = "–"


@dataclass(frozen=True)
class Sheet:
    """A title, headings (the first columns are texts), rows of cells, and notes below."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        heads = [heading.replace("\n", " ") for heading in self.headings]
        rules = [":--" if place < self.texts else "--:" for place in range(len(heads))]
        lines = [f"**{self.title}**", "", _line(heads), _line(rules), *map(_line, self.rows)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])

    def print(self) -> None:
        from divopd.report.run_tables import new_table, plain_console

        table = new_table(self.title, list(self.headings), texts=self.texts)
        for row in self.rows:
            table.add_row(*row)
        console = plain_console()
        console.print(table)
        for note in self.notes:
            console.print(note)


@dataclass(frozen=True)
class Made:
    """What an item made of the results: tables, the figures behind them, and how to draw its picture.

    `pictured` is the title of the setting that the picture shows, where it does not show all of them.
    """

    sheets: Sequence[Sheet]
    data: Any
    draw: Callable[[Path], None]
    pictured: str = ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def cell(interval: Interval | None, digits: int = 1, *, scale: float = 1.0, sign: str = "") -> str:
    """mean ± half of the 95 % interval, on two lines so that tables stay narrow; a single value alone."""
    if interval is None:
        return MISSING
    mean = f"{scale * interval.mean:{sign}.{digits}f}"
    return f"{mean}\n± {scale * (interval.high - interval.mean):.{digits}f}" if interval.count > 1 else mean


def ratio_cell(interval: Interval | None, *, pairs: int) -> str:
    """Geometric mean [95 % interval], and in how many pairs both came to the target."""
    if interval is None:
        return MISSING
    reached = f" ({interval.count}/{pairs})" if interval.count < pairs else ""
    limits = f"\n[{interval.low:.2f}, {interval.high:.2f}]" if interval.count > 1 else ""
    return f"{interval.mean:.2f}×{reached}{limits}"


def as_json(interval: Interval | None) -> dict[str, float | int | None] | None:
    """An interval as JSON: limits that do not exist are null."""
    if interval is None:
        return None
    limits = {"low": interval.low, "high": interval.high} if interval.count > 1 else {"low": None, "high": None}
    return {"mean": interval.mean, **limits, "count": interval.count}
