"""The closing page of an observer: one file without scripts that opens offline."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from divopd.metrics import mean_of_last
from divopd.records import BatchFigures
from divopd.report.comparison import BLUE, ORANGE, Replayed
from divopd.report.verdict import CHOICE, Verdict, verdict_lines

FEW_UPDATES = 10  # with fewer of them a page says no more than that
WIDTH, HEIGHT = 640, 160
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "td,th{text-align:right;padding:.15rem .8rem}td:first-child,th:first-child{text-align:left}"
    "tr:nth-child(even){background:#f4f4f4}table{border-collapse:collapse}dt{font-weight:600}"
)


def write_page(
    path: Path,
    verdict: Verdict | None,
    comparison: Mapping[str, Replayed],
    *,
    updates: Sequence[int],
    unknown: int,
) -> None:
    """Write what an observer saw, whole or not at all."""
    lines = [line.partition("  ") for line in verdict_lines(verdict)] if verdict else []
    told = "".join(f"<dt>{escape(head)}</dt><dd>{escape(text.strip())}</dd>" for head, _, text in lines)
    missed = f"<p>{unknown} trained rows had never been told as arrived; they are left out.</p>" if unknown else ""
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Observed: {len(updates)} updates</title><style>{STYLE}</style>"
        f"<h1>Is composition a problem in this run?</h1><p><strong>{escape(conclusion(verdict))}</strong></p>{missed}"
        f"{_table(comparison)}{_curve(comparison, updates)}<dl>{told}</dl></html>\n"
    )
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def conclusion(verdict: Verdict | None) -> str:
    """The answer of the page, in a sentence."""
    if verdict is None:
        return "Nothing can be said: no row that arrived can be trained."
    if verdict.updates < FEW_UPDATES:
        return f"Too early to say: {verdict.updates} updates were observed, at least {FEW_UPDATES} are needed."
    name, change = next(iter(verdict.change.items()))
    if change == "nothing":
        return f"No: {name} would train nearly the same rows."
    if change == "little":
        return f"Hardly: {name} would train some other rows, but few rollouts more."
    why = "rows arrive faster than they are trained, and" if verdict.load > CHOICE else "although few rows compete,"
    return (
        f"Yes, for the batches: {why} {name} would train much of what {verdict.baseline} leaves unused. Whether a "
        "student learns more from it is another question, see the evidence below."
    )


def _table(comparison: Mapping[str, Replayed]) -> str:
    heads = ("", "never used", "Gini", "effective rollouts", "top-1 share", "dead rows", "mean age")
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{one.utilization.never_selected:.1%}</td><td>{one.utilization.gini:.2f}</td>"
        + "".join(f"<td>{cell}</td>" for cell in _late(one.figures))
        + "</tr>"
        for name, one in comparison.items()
    )
    note = "Shares of rollouts with a valid row; batches are those of the last 40 % of updates."
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{rows}</table><p>{note}</p>"


def _late(figures: Sequence[BatchFigures]) -> list[str]:
    if not figures:
        return ["–"] * 4
    names = {"effective_rollouts": "{:.1f}", "top1_share": "{:.1%}", "dead_share": "{:.1%}", "age": "{:.2f}"}
    return [form.format(mean_of_last([getattr(one, name) for one in figures])) for name, form in names.items()]


def _curve(comparison: Mapping[str, Replayed], updates: Sequence[int]) -> str:
    """Effective rollouts of every update, a line each."""
    top = max((one.effective_rollouts for replayed in comparison.values() for one in replayed.figures), default=0.0)
    if len(updates) < 2 or not top:
        return ""
    lines: list[str] = []
    for (name, replayed), colour in zip(comparison.items(), (ORANGE, BLUE), strict=True):
        points = " ".join(
            f"{WIDTH * place / (len(updates) - 1):.1f},{HEIGHT * (1 - one.effective_rollouts / top):.1f}"
            for place, one in enumerate(replayed.figures)
        )
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}">'
                     f"<title>{escape(name)}</title></polyline>")  # fmt: skip
    names = " and ".join(
        f'<span style="color:{colour}">{escape(name)}</span>'
        for name, colour in zip(comparison, (ORANGE, BLUE), strict=True)
    )
    return (
        f"<p>Effective rollouts of each update (0 to {top:.1f}; updates {updates[0]} to {updates[-1]}): {names}</p>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img">{"".join(lines)}</svg>'
    )
