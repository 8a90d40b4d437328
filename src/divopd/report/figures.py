"""The look of all figures: the size of a page, colours that colour-blind readers tell apart, files written whole."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from divopd.errors import InputError, MissingExtraError
from divopd.report.seeds import Interval

WIDTH = 6.9  # inches: the text width of a page
GREY, LIGHT = "#6E6E6E", "#D9D9D9"
PALETTE = (
    "#D55E00",
    "#0072B2",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C6BB1",
)  # Okabe and Ito's, +1
MARKERS = "osD^vPX*"
METHOD_COLOURS = {
    "vanilla": "#D55E00",
    "vanilla-wide": "#E69F00",
    "gate-only": "#B8860B",
    "tcod-f2b": "#6E6E6E",
    "tcod-b2f": "#8F7B66",
    "turnopd": "#A6A6A6",
    "top-b": "#000000",
    "divopd-focus": "#CC79A7",
    "divopd-base": "#56B4E9",
    "divopd-base, no cap": "#A9D9F5",
    "divopd": "#0072B2",
    "divopd-r": "#009E73",
    "divopd-adaptive": "#8C6BB1",
}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.6,
}


def colour_of(method: str) -> str:
    """Always the same colour for a method, whatever stands after its name."""
    return METHOD_COLOURS.get(method) or METHOD_COLOURS.get(method.partition(",")[0], GREY)


@contextmanager
def figure(path: Path, *, rows: int = 1, columns: int = 1, height: float = 2.4, **grid: Any) -> Iterator[Any]:
    """Draw into a grid of axes (a flat list is given) and write the file when the block ends without an error."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plots") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with matplotlib.rc_context(STYLE):
        drawn, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False, **grid)
        try:
            yield list(axes.flat)
            path.parent.mkdir(parents=True, exist_ok=True)
            drawn.savefig(path, dpi=200)
        except OSError as error:
            raise InputError(f"{path}: cannot write the picture ({error.strerror})") from None
        finally:
            plt.close(drawn)


def whiskers(axes: Any, x: Sequence[float], y: Sequence[float], values: Sequence[Interval], *, along: str) -> None:
    """95 % intervals along the axis of the values; a single value has none."""
    for place, value in enumerate(values):
        if value.count > 1:
            reach = [[value.mean - value.low], [value.high - value.mean]]
            axes.errorbar(
                x[place],
                y[place],
                **{f"{along}err": reach},
                fmt="none",
                ecolor="black",
                elinewidth=0.8,
                capsize=1.8,
                zorder=3,
            )


def bars(
    axes: Any, labels: Sequence[str], values: Sequence[Interval], *, colours: Iterable[str], digits: int = 1
) -> None:
    """Horizontal bars, the first on top, each with its interval and its value in figures."""
    places = list(range(len(labels)))[::-1]
    means = [value.mean for value in values]
    axes.barh(places, means, color=list(colours), height=0.72, zorder=2)
    whiskers(axes, means, places, values, along="x")
    axes.set_yticks(places, labels)
    right = max([value.high for value in values if value.count > 1] + means + [0.0])
    right = min(right, 2 * max(*means, 0.0)) or 1.0  # a very wide interval must not squeeze the bars
    for place, value in zip(places, values, strict=True):
        end = min(value.high if value.count > 1 else value.mean, right)
        shown = f"{value.mean:.{digits}f}" if value.count else "–"
        axes.text(max(end, 0) + 0.02 * right, place, shown, va="center", fontsize=7)
    axes.set_xlim(1.2 * min(0.0, *means), 1.2 * right)


def grouped_bars(
    axes: Any, groups: Sequence[str], series: Mapping[str, Sequence[Interval]], *, colours: Mapping[str, str]
) -> float:
    """Upright bars: for each group one bar of every series, with intervals. Returns the top of the axis."""
    width = 0.84 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        means = [value.mean for value in values]
        axes.bar(places, means, width * 0.94, color=colours[name], label=name, zorder=2)
        whiskers(axes, places, means, values, along="y")
    axes.set_xticks(range(len(groups)), groups)
    means = [value.mean for values in series.values() for value in values]
    ends = [value.high for values in series.values() for value in values if value.count > 1]
    top = min(max(means + ends), 2 * max(means)) if max(means) > 0 else 0.0
    axes.set_ylim(1.25 * min(0.0, *means), 1.12 * top or 1.0)
    return 1.12 * top or 1.0


def forest(
    axes: Any, labels: Sequence[str], values: Sequence[Interval], *, null: float, colours: Sequence[str]
) -> None:
    """Differences or ratios with their intervals, the first on top, beside the line of no difference."""
    places = list(range(len(labels)))[::-1]
    means = [value.mean for value in values]
    whiskers(axes, means, places, values, along="x")
    axes.scatter(means, places, color=list(colours), s=30, zorder=4, edgecolor="black", linewidth=0.4)
    axes.axvline(null, color="black", linestyle="--", linewidth=0.8)
    axes.set_yticks(places, labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)


def band(axes: Any, x: Sequence[float], values: Sequence[Interval], *, colour: str, label: str, **line: Any) -> None:
    """A line of means with its 95 % interval shaded."""
    axes.plot(x, [v.mean for v in values], color=colour, label=label, **line)
    if all(value.count > 1 for value in values):
        axes.fill_between(x, [v.low for v in values], [v.high for v in values], color=colour, alpha=0.16, linewidth=0)


def whole_updates(axes: Any) -> None:
    """Ticks at whole numbers: there is no half an update."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def letter(axes: Sequence[Any]) -> None:
    """Mark several panels (a), (b), … for a caption to refer to."""
    for place, one in enumerate(axes):
        title = one.get_title()
        one.set_title("")
        one.set_title(f"({chr(ord('a') + place)}) {title}" if len(axes) > 1 else title, loc="left")
