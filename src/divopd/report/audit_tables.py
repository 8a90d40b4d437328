"""The audits as tables in the terminal, from their figures as JSON; one block of rows per run."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from divopd.printable import printable
from divopd.report.run_tables import new_table, plain_console, quantity

Figures = Mapping[str, Mapping[str, Any]]
Rows = Iterator[Sequence[str]]


def print_audit(name: str, runs: Figures) -> None:
    """Print what an audit of this name says about each run."""
    title, headings, rows_of, caption = TABLES[name]
    table = new_table(title, ["run", *headings], texts=2, caption=caption)
    for run, figures in runs.items():
        for place, row in enumerate(rows_of(figures)):
            table.add_row(printable(run) if place == 0 else "", *row)
        table.add_section()
    plain_console().print(table)


def _utilization(figures: Mapping[str, Any]) -> Rows:
    for method, used in figures.items():
        share = used["utilization"]
        yield (
            method,
            f"{share['never_selected']:.1%}",
            f"{share['gini']:.2f}",
            _ratio(share["scored_per_trained"]),
            f"{used['effective_rollouts']:.1f}",
            f"{used['top1_share']:.1%}",
        )
    bound = next(iter(figures.values()))["utilization"]["unreachable"]  # a row of another run has another one
    yield "no composer below", f"{bound:.1%}", "", "", "", ""


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _selection(figures: Mapping[str, Any]) -> Rows:
    stages = figures["stages"].values()
    for depth in next(iter(stages))["shares"]:
        for outcome in ("failure", "success"):
            yield f"{depth}, {outcome}", *(f"{stage['shares'][depth][outcome]:.1%}" for stage in stages)
    yield "all successes", *(f"{stage['success_share']:.1%}" for stage in stages)
    yield "dead rows", *(f"{stage['dead_share']:.1%}" for stage in stages)
    yield "rows that count of a batch", *(f"{stage['effective_batch']:.1f}" for stage in stages)
    yield "mean s(u) of a row", *(f"{stage['disagreement']:.2f}" for stage in stages)
    yield "mean s(u) of a valid row", *(f"{stage['valid_disagreement']:.2f}" for stage in stages)
    gate = figures["rejected"]
    kinds = ", ".join(f"{gate[kind]:.0%} {kind}" for kind in ("truncated", "failed", "unscored"))
    yield f"(rejected: {gate['rows']} rows{': ' + kinds if gate['rows'] else ''})", "", "", "", ""
    yield f"(of what arrived, {figures['pool_success_share']:.1%} are of successes)", "", "", "", ""


def _retention(figures: Mapping[str, Any]) -> Rows:
    for side, share in (("kept", 1 - figures["dropped_share"]), ("dropped", figures["dropped_share"])):
        of = figures[side]
        later = f"{figures['trained_later']:.1%}" if side == "dropped" else ""
        per_token = f"{of['disagreement_per_token']:.3f}"
        yield (
            side,
            str(of["turns"]),
            f"{share:.1%}",
            f"{of['depth']:.1f}",
            f"{of['disagreement']:.2f}",
            per_token,
            later,
        )


def _stability(figures: Mapping[str, Any]) -> Rows:
    for one in figures["lags"]:
        overlap = "–" if one["top_k_overlap"] is None else f"{one['top_k_overlap']:.1%}"
        yield (
            f"{one['lag']}" + (" (never trained)" if one["lag"] > figures["max_staleness"] else ""),
            str(one["turns"]),
            f"{one['spearman']:.3f}",
            overlap,
            f"{one['probability_correlation']:.3f}",
            f"{one['probability_gap']:.4f}",
        )


def _geometry(figures: Mapping[str, Any]) -> Rows:
    updates = figures["updates"]
    for name in updates[0]["composers"]:
        of, by_rollout = ([one[against][name] for one in updates] for against in ("composers", "rollout_mean"))
        pairs = [one["pairwise_cosine"] for one in of if one["pairwise_cosine"] is not None]
        yield (
            name,
            *(f"{fmean(one[m] for one in side):.2f}" for side in (of, by_rollout) for m in ("projection", "cosine")),
            f"{fmean(pairs):.3f}" if pairs else "–",
        )
    above, empty = figures["focus_above_base"], [""] * 5
    yield f"updates {', '.join(str(one['update']) for one in updates)}", *empty
    yield f"focus above base in {above['drawn']} of {figures['decided']} updates", *empty
    yield f"focus above base's expectation in {above['expected']} of {figures['decided']}", *empty
    yield f"oracle {figures['oracle_ratio']:.2f} times the best of divopd, divopd-focus, top-b", *empty
    yield f"against rollout means {figures['swapped_pairs']} pairs of composers change places", *empty
    dropped = fmean(one["dropped_turns"] for one in updates), fmean(one["dropped_norm"] for one in updates)
    yield f"focus drops {dropped[0]:.0%} of turns, {dropped[1]:.0%} of gradient norm", *empty


def _cost(figures: Mapping[str, Any]) -> Rows:
    yield "valid tokens scored per valid token trained", _ratio(figures["scored_per_trained"])
    yield "valid tokens scored and never trained", f"{figures['never_trained_share']:.1%}"
    for what, field in (
        ("tokens trained (rows whole)", "trained_tokens"),
        ("tokens the learner read", "computed_tokens"),
        ("tokens the teacher scored (rows whole)", "scored_tokens"),
        ("tokens the teacher need read", "read_tokens"),
        ("tokens generated", "generated_tokens"),
        ("seconds elapsed", "elapsed_s"),
        ("learner, training", "learner_s"),
        ("learner, waiting", "waited_s"),
        ("explorers, all in flight", "explorer_s"),
        ("teacher", "teacher_s"),
    ):
        yield what, "not known on this clock" if figures[field] is None else quantity(figures[field])


def _time(figures: Mapping[str, Any]) -> Rows:
    yield "tokens of a batch, mean", quantity(fmean(figures["tokens"]))
    yield "seconds of an update, mean", quantity(fmean(figures["step_s"]))
    yield "of them the same whatever the tokens", _known(figures["constant_share"], "{:.0%}")
    yield "correlation of tokens with seconds on the run's clock", _known(figures["correlation"], "{:.3f}")
    yield "correlation of tokens with the learner's real seconds", _known(figures["measured_correlation"], "{:.3f}")
    for stage, seconds in figures["stages_s"].items():
        yield f"learner, {stage}, real seconds", quantity(seconds)
    yield "estimate: updates + waits, seconds", quantity(figures["estimate_s"])
    yield "the clock, seconds", quantity(figures["elapsed_s"])
    yield "estimate against the clock", f"{figures['difference']:+.1%}"


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _kinds(figures: Mapping[str, Any]) -> Rows:
    for kind, one in figures.items():
        rate = one["success_rate"]
        yield (
            printable(kind),
            str(one["rollouts"]),
            f"{one['used']:.1%}",
            f"{one['arrived']:.1%}",
            f"{one['trained']:.1%}",
            f"{one['disagreement']:.2f}",
            "–" if rate is None else f"{rate:.1f}",
        )


TABLES = {
    "utilization": (
        "utilization: the same turns, replayed with every composer",
        ["composer", "never\nselected", "Gini", "scored/\ntrained", "eff.\nrollouts", "top-1\nshare"],
        _utilization,
        "never selected: valid rollouts without a trained turn; last two: mean of the last 40 % of updates",
    ),
    "selection": (
        "selection: share of selected turns by depth and outcome",
        ["turn, outcome", "vanilla", "+ gate", "+ coverage", "+ focus"],
        _selection,
        "s(u): disagreement in nats, 0 of a dead row. Rows that count: (1 - share of dead rows) · B",
    ),
    "retention": (
        "retention: what focus keeps when a rollout gets its first slots",
        ["", "turns", "share", "mean turn", "mean\ns(u)", "disagreement\nper token", "trained\nlater"],
        _retention,
        None,
    ),
    "stability": (
        "stability: cached disagreement against the same, recomputed later",
        ["versions later", "turns", "Spearman", "top-k\noverlap", "probability\ncorrelation", "probability\ngap"],
        _stability,
        None,
    ),
    "geometry": (
        "geometry: selected gradients against the pool's, same pools for all",
        [
            "composer",
            "projection\n⟨G,Ĝ⟩/‖G‖²",
            "cosine",
            "projection,\nrollout mean",
            "cosine,\nroll. mean",
            "pairwise\ncosine",
        ],
        _geometry,
        "G: the mean over the pool's valid turns, or over its rollouts of their means. Sketched gradients before the "
        "optimizer; the oracle selects and is judged in the same sketch",
    ),
    "cost": ("cost: who spent what", ["what", ""], _cost, None),
    "time": (
        "time: what an update takes, by the tokens of its batch",
        ["what", ""],
        _time,
        "on the virtual clock seconds follow from costs: they correlate by 1 if costs.trained_token_s is above 0",
    ),
    "kinds": (
        "kinds: whether a kind of task starves",
        ["kind", "rollouts", "used", "of turns\narrived", "of rows\ntrained", "disagree-\nment", "success\n%"],
        _kinds,
        "used: rollouts with a trained turn; disagreement: mean of a valid turn in nats; success: last evaluation",
    ),
}
