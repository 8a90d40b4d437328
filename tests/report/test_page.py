"""The scripts of the page, in a real browser: each choice draws what it says, and every view fits its screen."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import VIEWS, open_view, opened, settle
from divopd.records import Answers, UpdateRecord, encode_evaluation, encode_update
from divopd.report.page import write_report
from divopd.report.page.made_by import made_by
from divopd.report.run_comparison import compare_runs
from divopd.report.runs import read_run
from divopd.store.views import StoreViews
from fake_runs import make_run, replace_record

PICK = Answers(turns=100, tokens=500, longest=8, cut=20, without_action=10, invalid_actions=40)
HEAT = Answers(turns=300, tokens=600, longest=9, cut=30, without_action=60, invalid_actions=15)
LONG = "a_kind_of_task_with_quite_a_long_name"
CARD = {
    "command": "divopd train default/divopd --set seed=3",
    "began": "2026-01-02T03:04:05+00:00",
    "code": {"commit": "0123456789abcdef0123456789abcdef01234567", "changed": True, "lock": "feedfacefeedface"},
    "python": "3.11.7",
    "versions": {"numpy": "2.4.6", "torch": "2.13.0"},
    "processor": "A Processor",
    "cores": 2,
    "gpus": ["An Accelerator", "An Accelerator"],
}


def changed(record: UpdateRecord, *, factor: float) -> UpdateRecord:
    """A record in which every figure of the learner is another number, and none is that of another update."""
    assert record.learner is not None
    assert record.learner.logprob_gap is not None
    size = factor * (record.update + 1)
    learner = replace(
        record.learner,
        loss=0.01 * size,
        learner_kl_per_token=0.02 * size,
        gradient_norm=3.0 * size,
        clipped_norm=0.5 * size,
        lr=1e-3 * size,
        memory_bytes=int(1e9 * size),
        processor_s={"forward": 0.1 * size, "step": 0.2 * size},
        logprob_gap=replace(record.learner.logprob_gap, mean=1e-4 * size),
    )
    return replace(record, learner=learner, batch=replace(record.batch, kl_per_token=0.03 * size))


def changed_records(run: Path, *, factor: float) -> Path:
    with StoreViews.open(run) as store:
        updates, evaluations = store.update_records(), store.evaluations()
    for update, record in updates.items():
        replace_record(run, "update", update, encode_update(changed(record, factor=factor)))
    for version, record in evaluations.items():
        kinds = {"pick": record.success_rate, LONG: record.success_rate / 2}
        other = replace(record, by_kind=kinds, answers={"pick": PICK, LONG: HEAT})
        replace_record(run, "evaluation", version, encode_evaluation(other))
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of divopd and one of vanilla; each figure of each update is another number."""
    folder = tmp_path_factory.mktemp("runs")
    made = [
        make_run(folder / "vanilla-of-a-long-name", method="vanilla", rates=[10, 20, 56]),
        make_run(folder / "divopd-of-a-long-name-0", rates=[10, 40, 50, 62]),
        make_run(folder / "divopd-of-a-long-name-1", seed=1, rates=[12, 52, 50, 72]),
    ]
    (made[1] / "run.json").write_text(json.dumps(CARD), encoding="utf-8")
    return [changed_records(run, factor=factor) for factor, run in enumerate(made, 1)]


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report(runs, out)
    return out.as_uri()


@pytest.fixture(scope="module")
def browser(report: str) -> Iterator[Any]:
    """One page for all tests of this file: a browser takes long to start, and what is chosen stands in the address."""
    with opened(report, offline=True) as page:
        yield page


@pytest.fixture
def page(browser: Any) -> Any:
    browser.set_viewport_size({"width": 1280, "height": 800})
    return browser


def show(page: Any, address: str, name: str, choices: str = "") -> None:
    page.goto(f"{address}#{name}{choices}")
    page.wait_for_function("title => document.querySelector('h1').textContent === title", arg=VIEWS[name])
    settle(page)


def pick(page: Any, label: str, value: str) -> None:
    page.locator(f"select[data-key='picker/{label}']").select_option(value)
    settle(page)


def table(page: Any, title: str) -> list[dict[str, str]]:
    """The data of a figure, as its button shows it."""
    figure = page.locator(f"figure[aria-label='{title}']")
    button = figure.get_by_role("button", name="Table")
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    return rows_of(figure)


def rows_of(place: Any) -> list[dict[str, str]]:
    read = (
        "node => [...node.querySelectorAll('tbody tr')].map((row) => [...row.children].map((one) => one.textContent))"
    )
    names = place.locator("thead th").evaluate_all("nodes => nodes.map((one) => one.textContent.trim())")
    return [dict(zip(names, cells, strict=True)) for cells in place.evaluate(read)]


# ── how it looks ──────────────────────────────────────────────────────────────────────────────────────────────────

TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT_OFF = """() => [...document.querySelectorAll('#content svg')].flatMap((svg) => {
  const whole = svg.getBoundingClientRect();
  const beyond = (box) => box.width && (box.left < whole.left - 1 || box.right > whole.right + 1);
  const texts = [...svg.querySelectorAll('text')].filter((text) => beyond(text.getBoundingClientRect()));
  return texts.map((text) => text.textContent);
})"""
OVER_ANOTHER = """() => [...document.querySelectorAll('#content svg')].flatMap((svg) => {
  const ticks = [...svg.querySelectorAll("g[aria-label*='x-axis tick label'] text")];
  const boxes = ticks.map((text) => text.getBoundingClientRect()).sort((a, b) => a.left - b.left);
  return boxes.slice(1).some((box, place) => box.left < boxes[place].right) ? [svg.closest('figure').ariaLabel] : [];
})"""


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800), (1920, 1080)])
def test_every_view_fits_its_screen(page: Any, report: str, width: int, height: int) -> None:
    """A phone, a laptop, a large screen: nothing to scroll sideways, no label cut off, no tick over another."""
    page.set_viewport_size({"width": width, "height": height})
    for name in VIEWS:
        show(page, report, name)
        assert page.evaluate(TOO_WIDE) <= 0, name
        assert page.evaluate(CUT_OFF) == [], name
        assert page.evaluate(OVER_ANOTHER) == [], name


@pytest.mark.browser
def test_a_run_of_one_update_is_a_dot(page: Any, tmp_path: Path) -> None:
    """A line needs two points: until then the one there is can be seen."""
    run = make_run(tmp_path / "young", rates=[10, 20], every=1)
    write_report([run], tmp_path / "report.html")
    show(page, (tmp_path / "report.html").as_uri(), "training")
    dots = page.locator("figure[aria-label=Loss] g[aria-label=dot] circle")
    dots.first.wait_for(state="attached")
    assert dots.count() == 1
    rates = page.locator("figure[aria-label='Explorers: tokens per second']")
    assert "Nothing to draw" in rates.text_content()  # the first update has none before it
    assert rates.locator(".legend").count() == 0


# ── what is drawn ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.browser
def test_training_shows_each_figure_of_each_update(page: Any, runs: list[Path], report: str) -> None:
    """Under its own name, with what the run had spent by then on the axis that is chosen."""
    with StoreViews.open(runs[1]) as store:
        record = store.update_records()[4]
    assert record.learner is not None
    assert record.learner.logprob_gap is not None
    expected = {
        "Loss": record.learner.loss,
        "KL per token (nats)": record.learner.learner_kl_per_token,
        "KL per token when it was scored (nats)": record.batch.kl_per_token,
        "Gradient norm before clipping": record.learner.gradient_norm,
        "Gradient norm after clipping": record.learner.clipped_norm,
        "Learning rate": record.learner.lr,
        "Log-probability gap (nats)": record.learner.logprob_gap.mean,
        "Rows with a valid token": record.batch.rows,
        "Explorers: tokens per second": 10.0,
        "Teacher: tokens per second": 100.0,
        "Memory of the learner (GB)": (record.learner.memory_bytes or 0) / 1e9,
        "Processor seconds of an update": sum((record.learner.processor_s or {}).values()),
    }
    over = {
        "trained_tokens": record.spent.trained_tokens,
        "computed_tokens": record.spent.computed_tokens,
        "learner_s": record.spent.learner_s,
        "elapsed_s": record.elapsed_s,
        "scored_tokens": record.spent.scored_tokens,
        "generated_tokens": record.spent.generated_tokens,
    }
    show(page, report, "training")
    for title, value in expected.items():
        [row] = [r for r in table(page, title) if r["run"] == runs[1].name and r["update"] == "4"]
        assert float(row["value"]) == pytest.approx(value, rel=1e-5), title
    for axis, spent in over.items():
        pick(page, "Over", axis)
        [row] = [r for r in table(page, "Loss") if r["run"] == runs[1].name and r["update"] == "4"]
        assert float(row[axis.replace("_", " ")]) == pytest.approx(spent), axis


@pytest.mark.browser
def test_lines_are_means_of_the_updates_before(page: Any, report: str) -> None:
    """A running mean takes in so many values up to its own, and of them those that are known; none is the values."""
    show(page, report, "training")
    assert page.evaluate("smoothed([1, 2, 6, 10], 2)") == [1, 1.5, 4, 8]
    assert page.evaluate("smoothed([1, null, 6], 2)") == [1, None, 6]
    assert page.evaluate("smoothed([4, null, 6], 3)") == [4, None, 5]
    drawn = "document.querySelector('figure[aria-label=Loss] g[aria-label=line] path').getAttribute('d')"
    paths = {}
    for size in ("1", "5", "20"):
        pick(page, "Running mean", size)
        paths[size] = page.evaluate(drawn)
    assert len(set(paths.values())) == 3


@pytest.mark.browser
def test_a_range_keeps_the_end_of_each_run(page: Any, runs: list[Path], report: str) -> None:
    """The second half and the last quarter of nine updates, in lines and in bars; the whole run otherwise."""
    name = runs[1].name
    show(page, report, "training")
    for part, kept in (("all", range(9)), ("half", range(4, 9)), ("quarter", range(6, 9)), ("50", range(9))):
        pick(page, "Range", part)
        assert [int(r["update"]) for r in table(page, "Loss") if r["run"] == name] == list(kept), part
    pick(page, "Range", "half")
    open_view(page, "time")
    assert {int(row["update"]) for row in table(page, f"Clock: {name}")} == set(range(4, 9))
    open_view(page, "learning")
    assert [int(r["update"]) for r in table(page, "Success rate") if r["run"] == name] == [6, 9]
    cut = "inRange({ range: '50' }, d3.range(120).map((update) => ({ update }))).length"
    assert page.evaluate(cut) == 50


@pytest.mark.browser
def test_bars_stand_where_their_updates_were(page: Any, runs: list[Path], report: str) -> None:
    """Over trained tokens a bar is as wide as its batch; over updates all are equally wide."""
    with StoreViews.open(runs[1]) as store:
        spent = [record.spent.trained_tokens for record in store.update_records().values()]
    widths = "([context, rows]) => spansOf(context, rows).spans.map(({ from, to }) => to - from)"
    rows = [{"update": update, "cost.trained_tokens": tokens} for update, tokens in enumerate(spent)]
    show(page, report, "flow")
    over_tokens = page.evaluate(widths, [{"axis": "trained_tokens", "range": "all"}, rows])
    assert over_tokens == [spent[0], *(b - a for a, b in itertools.pairwise(spent))]
    assert page.evaluate(widths, [{"axis": "version", "range": "all"}, rows]) == [1] * len(rows)
    assert page.evaluate(widths, [{"axis": "learner_s", "range": "half"}, rows]) == [1] * 5  # not counted
    left = page.locator(f"figure[aria-label='What left the queue: {runs[1].name}']")
    assert "trained tokens →" in left.text_content()
    pick(page, "Over", "version")
    assert "updates →" in left.text_content()


@pytest.mark.browser
def test_seeds_are_a_band_over_what_all_have_reached(page: Any, runs: list[Path], report: str) -> None:
    """Mean, lowest and highest, between points linear; runs that differ in a setting are no seeds of one method."""
    points = [{"run": "a", "x": x, "y": y} for x, y in ((0, 0.0), (10, 10.0), (20, 30.0))]
    points += [{"run": "b", "x": x, "y": y} for x, y in ((5, 1.0), (15, 3.0))]
    alike = {"method": "divopd", "kind": "run", "settings": {"lr": 1}}
    show(page, report, "learning")
    group = {"label": "g", "runs": [{"name": "a"}, {"name": "b"}]}
    band = page.evaluate("([group, rows]) => bandOf(group, rows)", [group, points])
    assert [(one["x"], one["low"], one["mean"], one["high"]) for one in band] == [
        (5, 1.0, 3.0, 5.0),
        (10, 2.0, 6.0, 10.0),
        (15, 3.0, 11.5, 20.0),
    ]
    others = [{**alike, "name": "a"}, {**alike, "name": "b"}, {**alike, "name": "c", "settings": {"lr": 2}}]
    groups = page.evaluate("(runs) => groupsOf(runs).map((group) => group.runs.map((run) => run.name))", others)
    assert groups == [["a", "b"], ["c"]]
    curves = page.locator("figure[aria-label='Success rate']")
    assert curves.locator(".legend > span").all_text_contents() == [runs[0].name, "divopd, 2 seeds"]
    pick(page, "Lines", "runs")
    assert curves.locator(".legend > span").all_text_contents() == [run.name for run in runs]


@pytest.mark.browser
def test_costs_are_those_of_compare_in_every_currency(page: Any, runs: list[Path], report: str) -> None:
    """To each target, beside nAUC; a target that a run missed is said so."""
    comparison = compare_runs([read_run(run) for run in runs])
    show(page, report, "cost")
    for name, words in (("trained_tokens", "trained tokens"), ("learner_s", "learner seconds")):
        page.get_by_role("button", name=words, exact=True).click()
        settle(page)
        shown = rows_of(page.get_by_role("region", name=f"{words} to each target"))
        for standing, row in zip(comparison.standings, shown, strict=True):
            assert row["run"] == standing.run
            nauc = next(value for key, value in row.items() if key.startswith("nAUC@"))
            assert standing.nauc is not None
            assert nauc == f"{standing.nauc:.1f}"
            for reached in standing.to_targets:
                text = next(v for key, v in row.items() if key.startswith(f"{reached.target} %"))
                if reached.costs is None:
                    assert text == "not reached"
                else:
                    cost, ratio = getattr(reached.costs, name), reached.ratios[name]
                    written = page.evaluate(f"show.{'seconds' if name == 'learner_s' else 'quantity'}({cost})")
                    assert text == f"{written}{'' if ratio is None else f'{ratio:.2f}×'}"
    assert {one.costs is None for s in comparison.standings for one in s.to_targets} == {True, False}


@pytest.mark.browser
def test_answers_of_one_kind_and_of_all(page: Any, runs: list[Path], report: str) -> None:
    """Shares are of the turns of that kind; of all kinds they are weighed by their turns."""
    titles = {
        "Responses without an action (%)": (10.0, 20.0, 17.5),
        "Invalid actions (%)": (40.0, 5.0, 13.75),
        "Responses cut at the limit (%)": (20.0, 10.0, 12.5),
        "Length of a response (tokens)": (5.0, 2.0, 2.75),
    }
    show(page, report, "answers")
    for place, kind in enumerate(("pick", LONG, "")):
        pick(page, "Kind of task", kind)
        for title, values in titles.items():
            assert {float(row["value"]) for row in table(page, title)} == {values[place]}, (title, kind)
    shown = {row["kind of task"]: row for row in rows_of(page.locator(".card", has_text="By kind of task"))}
    assert [shown[kind]["invalid action"] for kind in ("pick", LONG, "all")] == ["40.0 %", "5.0 %", "13.8 %"]
    assert (shown["all"]["turns"], shown["all"]["longest"]) == ("400", "9")


@pytest.mark.browser
def test_counts_by_depth_are_those_of_the_store(page: Any, runs: list[Path], report: str) -> None:
    """Turns, valid turns and fates at each place of a rollout."""
    with StoreViews.open(runs[0]) as store:
        tallies = store.depth_tallies()
    show(page, report, "depth")
    shown = rows_of(page.get_by_role("region", name=f"Counts by depth: {runs[0].name}"))
    for row in shown:
        own = [one for one in tallies if one.turn == int(row["turn"])]
        assert int(row["rollouts that have it"]) == sum(one.turns for one in own)
        assert int(row["valid"]) == sum(one.valid_turns for one in own)
        for fate in ("trained", "dead", "stale"):
            assert int(row[fate]) == sum(one.turns for one in own if one.fate == fate), fate
    assert len(shown) == len({one.turn for one in tallies})


@pytest.mark.browser
def test_rollouts_of_a_report_are_filtered_and_sorted_as_the_store_does(
    page: Any, runs: list[Path], report: str
) -> None:
    """By the fate of a turn, by text, by a column either way."""
    show(page, report, "rollouts")
    with StoreViews.open(runs[0]) as store:
        usual = {"first": 0, "count": 999, "order": "arrival", "fate": "", "text": ""}
        ask = "([run, query]) => report.rollouts(run, query)"
        queries = [{"fate": fate} for fate in ("trained", "dead", "stale", "queued", "invalid")]
        queries += [
            {"order": "-arrival"},
            {"text": "R.0.1."},
            {"fate": "stale", "text": "r.0.2."},
            {"first": 3, "count": 4},
        ]
        for query in queries:
            made = page.evaluate(ask, [runs[0].name, usual | query])
            expected = store.rollout_page(**{"first": 0, "count": 999, **query})
            assert made["total"] == expected.total, query
            assert [row["rollout"] for row in made["rows"]] == [row.rollout for row in expected.rows], query
        down = page.evaluate(ask, [runs[0].name, usual | {"order": "-stale"}])["rows"]
        counts = [row["fates"]["stale"] for row in down]
        assert counts == sorted(counts, reverse=True)
        assert len(set(counts)) > 1


@pytest.mark.browser
def test_two_runs_keep_their_colours_and_units(page: Any, runs: list[Path], report: str) -> None:
    """Another method of the same seed is offered first; a run that other views hide is still drawn; seconds say so."""
    show(page, report, "diff", f"?hide={runs[0].name}")
    chosen = [page.locator(f"select[data-key='picker/{side}']").input_value() for side in "AB"]
    assert chosen == [runs[0].name, runs[1].name]
    strokes = page.locator("figure[aria-label='Success rate'] g[aria-label=line] path").evaluate_all(
        "paths => paths.map((path) => path.getAttribute('stroke'))"
    )
    assert len(strokes) == 2
    assert strokes == [page.evaluate(f"palette().{method}") for method in ("vanilla", "divopd")]
    row = page.locator("tr", has_text="learner seconds to")
    assert row.locator("td").last.text_content().endswith(" s")


# ── what made the runs ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_card_is_told_in_texts(tmp_path: Path) -> None:
    """Commit, lock, machine, packages and command; what is not there or cannot be read is left out."""
    file = tmp_path / "run.json"
    assert made_by(tmp_path) is None
    file.write_text(json.dumps(CARD), encoding="utf-8")
    assert made_by(tmp_path) == {
        "command": "divopd train default/divopd --set seed=3",
        "began": "2026-01-02 03:04:05 UTC",
        "commit": "0123456789ab, changed since",
        "lock": "feedfacefeedface",
        "machine": "A Processor, 2 cores",
        "gpus": "An Accelerator, An Accelerator",
        "python": "3.11.7",
        "packages": "numpy 2.4.6, torch 2.13.0",
    }
    file.write_text(json.dumps(CARD | {"code": None, "gpus": []}), encoding="utf-8")
    installed = made_by(tmp_path)
    assert installed is not None
    assert (installed["commit"], installed["gpus"], "lock" in installed) == ("an installed package", "none", False)
    for text in ("[1]", "no JSON", '{"code": 3, "versions": [], "gpus": "x", "cores": null}'):
        file.write_text(text, encoding="utf-8")
        assert not {"commit", "lock", "machine", "gpus"} - {"commit"} & set(made_by(tmp_path) or {})


@pytest.mark.browser
def test_the_page_shows_what_made_each_run(page: Any, runs: list[Path], report: str) -> None:
    """A card for a run that has one; of two runs, in what they differ."""
    show(page, report, "learning")
    shown = {row["run"]: row for row in rows_of(page.get_by_role("region", name="What made the runs"))}
    assert shown[runs[1].name]["commit"] == "0123456789ab, changed since"
    assert shown[runs[1].name]["command"].strip() == CARD["command"]
    assert shown[runs[1].name]["GPU"] == "An Accelerator, An Accelerator"
    assert shown[runs[0].name]["commit"] == "–"
    open_view(page, "diff")
    differing = {row["setting"]: row for row in rows_of(page.get_by_role("region", name="Settings that differ"))}
    assert (differing["commit"]["A"], differing["commit"]["B"]) == ("not known", "0123456789ab, changed since")
    page.locator("nav a[data-key='nav/learning']").click()
    settle(page)
    for run in runs[1:2]:
        page.locator(f".chip[data-key='run/{run.name}']").click()
        settle(page)
    assert "they have no run.json" in page.locator("#content").text_content()
