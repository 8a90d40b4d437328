"""A picture of what is in the batches: every update a column, every rollout a block as high as the rows it gave."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from divopd.report.comparison import BLUE, GREY, ORANGE
from divopd.report.figures import figure
from divopd.store import Store, StoreReader
from divopd.validity import why_invalid

SHADES = (0.95, 0.45, 0.75, 0.3)  # so that neighbours can be told apart
COLOURS = {"vanilla": ORANGE, "divopd": BLUE}


@dataclass(frozen=True)
class Blocks:
    """One batch: rows of each rollout that can be trained, largest first, and rows without a valid token."""

    rows: tuple[int, ...]
    dead: int


def blocks_of(run: Path) -> list[Blocks]:
    """The batches of a run, in order."""
    with Store.open_read_only(run) as store:
        return [_blocks(store, update) for update in range(store.updates)]


def _blocks(store: StoreReader, update: int) -> Blocks:
    turns = store.batch(update).turns
    alive = Counter(turn.rollout for turn in turns if why_invalid(turn) is None)
    return Blocks(tuple(sorted(alive.values(), reverse=True)), len(turns) - alive.total())


def draw_batches(batches: Mapping[str, Sequence[Blocks]], path: Path) -> None:
    """A panel for every method; dead rows are hatched, on top."""
    with figure(path, columns=len(batches), height=2.7, sharey=True) as axes:
        for one, (method, columns) in zip(axes, batches.items(), strict=True):
            for update, column in enumerate(columns):
                bottom = 0
                for place, rows in enumerate(column.rows):
                    shade = SHADES[place % len(SHADES)]
                    one.bar(update, rows, bottom=bottom, width=0.92, color=COLOURS.get(method, BLUE), alpha=shade)
                    bottom += rows
                if column.dead:
                    kind = {"color": "white", "edgecolor": GREY, "hatch": "////", "linewidth": 0}
                    one.bar(update, column.dead, bottom=bottom, width=0.92, **kind)
            one.set(xlabel="learner update", title=_title(method, columns))
            one.title.set_fontsize(8)
        axes[0].set_ylabel("rows, a block for each rollout")


def _title(method: str, columns: Sequence[Blocks]) -> str:
    rollouts, dead = fmean(len(one.rows) for one in columns), fmean(one.dead for one in columns)
    wasted = f"{dead:.0f} rows teach nothing (hatched)" if dead else "every row can teach"
    return f"{method}: {rollouts:.0f} rollouts in a batch,\n{wasted}"
