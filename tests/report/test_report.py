"""The report: its figures are those of the commands, it opens offline in a real browser, and texts stay texts."""

import argparse
import itertools
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from browser import VIEWS, open_view, opened, settle
from divopd.cli import report
from divopd.errors import InputError
from divopd.metrics import batch_figures
from divopd.records import Answers, encode_evaluation, encode_update
from divopd.report.explanation import explain
from divopd.report.fates import why
from divopd.report.page import data, static, write_report
from divopd.report.page.health import health
from divopd.report.run_comparison import compare_runs
from divopd.report.runs import read_run
from divopd.store import Store
from divopd.store.views import FATES, StoreViews
from doubles.small_records import make_evaluation_record
from evil_runs import SCRIPT, TASK, make_evil_run
from fake_runs import make_run, replace_record


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A vanilla and a divopd run; divopd reaches 40 % one evaluation earlier."""
    folder = tmp_path_factory.mktemp("runs")
    vanilla = make_run(folder / "vanilla", method="vanilla", rates=[10, 20, 44])
    return [vanilla, make_run(folder / "divopd", rates=[10, 40, 50, 60])]


@pytest.fixture(scope="module")
def page_file(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report(folders, out)
    return out


def embedded(page: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S
    )
    assert found
    return json.loads(found[1])["views"]


# ── the data ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_comparison_is_that_of_compare(folders: list[Path], page_file: Path) -> None:
    """All runs together and each pair say what `divopd compare` says."""
    views = embedded(page_file)
    runs = [read_run(folder) for folder in folders]
    assert views["comparison"] == data.plain(compare_runs(runs).as_json())
    assert views["comparison/divopd/vanilla"] == data.plain(compare_runs(runs[::-1]).as_json())


def test_batches_and_rollouts_are_those_of_explain_and_why(folders: list[Path], page_file: Path) -> None:
    """A batch lists the rollouts, slots and exits of `explain`; a rollout has the sentences of `why`."""
    views = embedded(page_file)
    with StoreViews.open(folders[1]) as store:
        explained, shown = explain(store, 5), views["run/divopd/batch/5"]
        slots = {slot[0]: slot[1] + slot[2] for slot in views["run/divopd/batches"]["batches"][5]["slots"]}
        for entry, line in zip(explained["rollouts"], shown["rollouts"], strict=True):
            assert line["rollout"] == entry["rollout"]
            assert [turn[0] for turn in line["selected"]] == [turn["turn"] for turn in entry["selected"]]
            assert line["pending"] == [turn["turn"] for turn in entry["pending"]]
            assert slots.get(entry["rollout"], 0) == len(entry["selected"])
            told = why(store, entry["rollout"])
            read = views[f"run/divopd/rollout/{entry['rollout']}"]
            assert [t["sentence"] for t in read["turns"]] == [t["sentence"] for t in told["turns"]]


def test_figures_of_a_journal_are_those_that_training_records(folders: list[Path]) -> None:
    """What a replay's page computes from its journal is what a run's page reads from its records."""
    with StoreViews.open(folders[1]) as store:
        recorded = store.update_records()
        recomputed = data._recomputed(store, 0, store.updates - 1)
        assert list(recomputed) == list(recorded)
        for update, made in recomputed.items():
            expected = recorded[update]
            assert made.update == update
            assert asdict(made.batch) == pytest.approx(asdict(expected.batch))
            assert asdict(made.batch) == pytest.approx(
                asdict(batch_figures(store.batch(update).candidates, update=update))
            )
            unknown = {"rollouts_used": 0, "rollouts_unused": 0}  # a journal does not tell
            assert asdict(made.queue) == asdict(expected.queue) | unknown


def account_without_put(account: dict[str, int]) -> dict[str, int]:
    return {fate: turns for fate, turns in account.items() if fate != "put"}


def test_every_turn_is_counted_once(folders: list[Path]) -> None:
    """Flow, depths, ages and the list of rollouts all add up to the account."""
    for folder in folders:
        with StoreViews.open(folder) as store:
            account = store.account()._asdict()
            assert sum(tally.turns for tally in store.depth_tallies()) == account["put"]
            assert sum(store.ages().values()) == sum(store.waits().values()) == account["trained"]
            assert sum(store.reasons().values()) == account["invalid"]
            rows = store.rollout_page(first=0, count=10_000).rows
            flow = data.flow(store)
            dead = sum(turn.fate.kind == "trained" and turn.reason is not None for turn in store.stored_turns())
            assert sum(flow["dead"].values()) == flow["fates"]["dead"] == dead
            assert flow["fates"] == account_without_put(account) | {"trained": account["trained"] - dead, "dead": dead}
            for fate in FATES:
                assert sum(row.fates[fate] for row in rows) == flow["fates"][fate]
                at_depths = sum(tally.turns for tally in store.depth_tallies() if tally.fate == fate)
                assert at_depths == flow["fates"][fate]


def test_rollouts_come_in_pages_of_any_order(folders: list[Path]) -> None:
    """Pages join to the whole list; each order and filter gives what sorting and filtering the whole gives."""
    with StoreViews.open(folders[0]) as store:
        whole = store.rollout_page(first=0, count=10_000)
        pages = [store.rollout_page(first=first, count=7).rows for first in range(0, whole.total, 7)]
        assert [row for page in pages for row in page] == whole.rows
        back = store.rollout_page(first=0, count=10_000, order="-arrival").rows
        assert back == whole.rows[::-1]
        stale = store.rollout_page(first=0, count=10_000, order="-stale", fate="stale")
        assert stale.total == len(stale.rows) == sum(row.fates["stale"] > 0 for row in whole.rows)
        assert [row.fates["stale"] for row in stale.rows] == sorted(
            (r.fates["stale"] for r in stale.rows), reverse=True
        )
        dead = store.rollout_page(first=0, count=10_000, order="-dead", fate="dead")
        assert 0 < dead.total == sum(row.fates["dead"] > 0 for row in whole.rows) < whole.total
        named = store.rollout_page(first=0, count=10_000, text="R.0.1.")
        assert {row.rollout for row in named.rows} == {r.rollout for r in whole.rows if "r.0.1." in r.rollout}
        with pytest.raises(InputError):
            store.rollout_page(first=0, count=1, order="task; DROP TABLE turns")


def test_a_run_without_an_update_and_one_without_evaluations_have_a_page(tmp_path: Path) -> None:
    """What is not there yet is empty, never an error."""
    (tmp_path / "new").mkdir()
    Store.create(tmp_path / "new" / "store.db").close()
    running = make_run(tmp_path / "running", rates=[None, None])
    write_report([tmp_path / "new", running], tmp_path / "report.html")
    views = embedded(tmp_path / "report.html")
    assert "error" in views["comparison"]
    assert views["run/new/updates"]["columns"] == {}
    assert len(views["run/running/updates"]["columns"]["update"]) == 3


def test_columns_of_updates_are_those_of_the_records(folders: list[Path]) -> None:
    """What the learner measured, what had been spent, and tokens of each role per second since the update before."""
    with StoreViews.open(folders[1]) as store:
        records, columns = store.update_records(), data.updates(store, after=-1, count=None)["columns"]
        later = data.updates(store, after=4, count=None)["columns"]
    assert columns["lr"] == [1e-3] * len(records)
    assert columns["clipped_norm"] == [1.0] * len(records)
    assert columns["memory_bytes"] == [10**9] * len(records)
    assert columns["processor_s"] == pytest.approx([0.6] * len(records))
    assert columns["gap_mean"] == [2e-6] * len(records)
    assert columns["pending"] == [record.queue.pending for record in records.values()]
    trained = [record.spent.trained_tokens for record in records.values()]
    assert columns["cost.trained_tokens"] == trained
    assert columns["rate.learner"] == [None, *((b - a) / 10 for a, b in itertools.pairwise(trained))]
    assert columns["rate.explorers"][1:] == [10.0] * (len(records) - 1)
    assert later["rate.learner"] == columns["rate.learner"][5:]  # also where a page asks for the newest only


def test_a_page_of_before_these_figures_opens(tmp_path: Path) -> None:
    """Records of earlier versions have no answers, rates or memory: the rest is shown."""
    run = make_run(tmp_path / "old")
    with StoreViews.open(run) as store:
        for update, record in store.update_records().items():
            old = encode_update(record)
            for name in ("clipped_norm", "lr", "memory_bytes", "processor_s"):
                del old["learner"][name]
            del old["pending"], old["invalid_by_reason"]
            replace_record(run, "update", update, old)
        for version, record in store.evaluations().items():
            old = encode_evaluation(record)
            del old["answers"]
            replace_record(run, "evaluation", version, old)
    write_report([run], tmp_path / "report.html")
    views = embedded(tmp_path / "report.html")
    assert set(views["run/old/updates"]["columns"]["lr"]) == {None}
    assert {one["answers"] for one in views["run/old/learning"]["evaluations"]} == {None}
    assert views["run/old/health"]["warnings"] == []


def test_what_held_a_run_up_is_listed(tmp_path: Path) -> None:
    """An absence with its end, one that did not end, and the stretches in which the learner starved."""
    run = make_run(tmp_path / "run")
    with Store.open(run) as store:
        store.note("teacher_away", {"error": "refused", "update": 1})
        store.note("teacher_back", {"away_s": 12.5, "update": 2})
        store.note("teacher_away", {"error": "timed out"})  # as versions before wrote it
        for update, record in store.update_records().items():
            if update == 3:
                replace_record(run, "update", 3, encode_update(replace(record, starved_s=0.0)))
    with StoreViews.open(run) as store:
        happened = health(store)["happened"]
    starved = "the queue had no turn that could be trained"
    begun = "every run begins so: its first rollouts were being played and scored"
    assert happened == [
        {"what": "teacher away", "first": 1, "last": 2, "seconds": 12.5, "why": "refused"},
        {"what": "teacher away", "first": None, "last": None, "seconds": None, "why": "timed out"},
        {"what": "starved", "first": 0, "last": 0, "seconds": 0.5, "why": begun},
        {"what": "starved", "first": 1, "last": 2, "seconds": 1.0, "why": starved},
        {"what": "starved", "first": 4, "last": 5, "seconds": 1.0, "why": starved},
    ]


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_report_is_one_file_that_asks_for_nothing(page_file: Path) -> None:
    """No address is loaded from, scripts run by their digest only, and what is there is replaced whole."""
    text = page_file.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy[1].split("style-src")[0]
    assert len(text) < 5_000_000
    assert [path.name for path in page_file.parent.iterdir()] == ["report.html"]


def test_texts_cannot_end_their_element(tmp_path: Path) -> None:
    """Whatever the environment says: no tag is in the data, and it comes back as it was."""
    write_report([make_evil_run(tmp_path / "run")], tmp_path / "report.html")
    views = embedded(tmp_path / "report.html")
    assert views["run/run/rollouts"]["rows"][0]["task"] == TASK
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert SCRIPT not in text
    assert "{{" not in text.split('id="data"')[0]


def test_the_command_takes_runs_and_folders_of_runs(folders: list[Path], tmp_path: Path, capsys: Any) -> None:
    """A folder of runs is all of them; what is no run is refused; the size is told."""
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    out = tmp_path / "all.html"
    assert report.run(parser.parse_args([str(folders[0].parent), "--out", str(out)])) == 0
    assert [run["name"] for run in embedded(out)["runs"]["runs"]] == ["divopd", "vanilla"]
    assert "MB" in capsys.readouterr().err
    with pytest.raises(InputError, match="no run in it"):
        report.run(parser.parse_args([str(tmp_path), "--out", str(out)]))
    with pytest.raises(InputError, match="cannot write"):
        write_report(folders, tmp_path / "missing" / "report.html")


def test_a_long_run_leaves_texts_out(tmp_path: Path, folders: list[Path]) -> None:
    """With a small budget some rollouts and batches have no texts; the rest are spread over the run."""
    with StoreViews.open(folders[0]) as store:
        names = [row.rollout for row in store.rollout_page(first=0, count=1000).rows]
        some = list(static._readable(store, names, budget=60_000))
        assert 3 < len(some) < len(names)
        places = sorted(names.index(name.removeprefix("rollout/")) for name in some)
        assert places[0] < len(names) / 4
        assert places[-1] > 3 * len(names) / 4
        assert 0 < len(static._explained(store, store.updates, budget=4_000)) < store.updates


# ── in a browser ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.browser
def test_every_view_opens_offline(page_file: Path) -> None:
    """Each view is drawn by a click, in both colour schemes, without a word on the console; figures have their data."""
    with opened(page_file.as_uri(), offline=True) as page:
        for name in VIEWS:
            open_view(page, name)
            assert page.locator("#content svg, #content table").count() > 0, name
            assert page.locator(".error").count() == 0, name
        open_view(page, "flow")
        page.locator("[data-key=theme]").click()
        page.locator("[data-key=theme]").click()
        settle(page)
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        for button, suffix, holds in (("CSV", ".csv", b"fate,"), ("SVG", ".svg", b"<svg")):
            with page.expect_download() as download:
                page.locator("figure").first.get_by_role("button", name=button).click()
            assert download.value.suggested_filename.endswith(suffix)
            assert holds in Path(download.value.path()).read_bytes()


@pytest.mark.browser
def test_labels_of_the_flow_are_whole(page_file: Path) -> None:
    """Also the longest one, of turns that were invalid, ends inside its picture."""
    beyond = "svg => [...svg.querySelectorAll('text')].map(t => t.getBBox().x + t.getBBox().width - svg.clientWidth)"
    with opened(page_file.as_uri(), offline=True) as page:
        open_view(page, "flow")
        flows = page.locator("svg[aria-label='flow of turns']")
        assert "invalid: " in " ".join(flows.all_text_contents())
        for flow in flows.all():
            assert max(flow.evaluate(beyond)) <= 0


@pytest.mark.browser
def test_dead_rows_and_missed_targets_are_told(tmp_path: Path) -> None:
    """Flow, depths, rollouts and two runs show dead rows by themselves; a target that was missed is not reached."""
    vanilla = make_run(tmp_path / "vanilla", method="vanilla", rates=[10, 55, 76])
    divopd = make_run(tmp_path / "divopd", rates=[10, 62, 74])
    write_report([vanilla, divopd], tmp_path / "report.html")
    fates = [read_run(run).fates for run in (vanilla, divopd)]
    with opened((tmp_path / "report.html").as_uri(), offline=True) as page:
        open_view(page, "flow")
        flows = page.locator("svg[aria-label='flow of turns']").all_text_contents()
        share = fates[0]["trained"] / sum(fates[0].values())
        assert f"trained{fates[0]['trained']} ({100 * share:.1f} %)" in flows[0]
        assert "dead row: prompt truncated" in flows[0]
        assert "dead row" not in flows[1]
        open_view(page, "rollouts")
        page.get_by_label("With a turn that is").select_option("dead")
        settle(page)
        with StoreViews.open(vanilla) as store:
            expected = store.rollout_page(first=0, count=10_000, fate="dead").total
        assert page.locator("tbody tr").count() == expected
        page.locator("tbody a").first.click()
        page.wait_for_selector(".turn")
        assert "dead row at update" in " ".join(page.locator(".badge").all_text_contents())
        open_view(page, "cost")
        table = page.locator("table", has_text="nAUC@6")
        assert "not reached" in table.locator("tr", has_text="divopd").text_content()
        ratio = compare_runs([read_run(run) for run in (vanilla, divopd)]).standings[1].to_targets[1].ratios
        assert f"{ratio['trained_tokens']:.2f}×" in table.locator("tr", has_text="divopd").text_content()
        page.get_by_role("button", name="60 %", exact=True).click()
        settle(page)
        assert "divopd did not reach" not in page.locator("#content").text_content()
        page.get_by_role("button", name="75 % (τ)", exact=True).click()
        settle(page)
        assert "divopd did not reach 75 %: its peak was 74.0 %." in page.locator("#content").text_content()
        open_view(page, "diff")
        assert "not reached" in page.locator("tr", has_text="trained tokens to 75 %").first.text_content()
        assert page.locator("tr", has_text="turns as dead rows").count() == 1
        for name in ("cost", "diff"):
            open_view(page, name)
            assert not re.search(r"\bnever\b(?! used)", page.locator("#content").inner_text()), name


@pytest.mark.browser
def test_a_person_finds_the_way(page_file: Path) -> None:
    """Another axis, a sorted table, an explained batch, a rollout turn by turn, two runs: by mouse and by keyboard."""
    with opened(page_file.as_uri(), offline=True) as page:
        figure = page.locator("figure[aria-label='Success rate']")
        assert "trained tokens →" in figure.text_content()  # unless another axis is chosen
        page.get_by_label("Over").select_option("learner_s")
        settle(page)
        assert "learner seconds →" in figure.text_content()
        page.get_by_role("button", name="peak").click()
        assert page.locator("table tbody th").first.text_content() == "divopd"
        page.get_by_role("button", name="peak").click()
        assert page.locator("table tbody th").first.text_content() == "vanilla"

        open_view(page, "batches")
        page.locator(".column").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#explanation")
        assert "Update 0 of vanilla" in page.locator("#explanation h3").text_content()
        page.locator("#explanation a").first.click()
        page.wait_for_selector(".turn")
        assert page.locator(".token").count() > 0
        assert "is queued" in page.locator(".sentence").last.text_content() or page.locator(".badge").count() > 0

        open_view(page, "rollouts")
        page.get_by_label("Search by id or task").fill("r.0.2.")
        page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 6")
        page.get_by_label("With a turn that is").select_option("aged_out")
        settle(page)

        open_view(page, "diff")
        row = page.locator("tr", has_text="peak success rate")
        assert "+16 points" in row.text_content()
        page.get_by_role("button", name="Swap").click()
        settle(page)
        assert "−16 points" in page.locator("tr", has_text="peak success rate").text_content()

        page.locator("nav a").first.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('h1').textContent === 'Cost to a target'")


@pytest.mark.browser
def test_hostile_texts_are_shown_as_texts(tmp_path: Path) -> None:
    """Scripts, tags, chat markers, terminal escapes and turned directions are read on the page, and do nothing."""
    folder = make_evil_run(tmp_path / "<b>run" / "x")
    write_report([folder], tmp_path / "report.html")
    with opened((tmp_path / "report.html").as_uri(), offline=True) as page:
        for name in VIEWS:
            open_view(page, name)
        open_view(page, "rollouts")
        assert TASK in page.locator("tbody").text_content()
        page.locator("tbody a").first.click()
        page.wait_for_selector(".turn")
        seen = page.locator(".seen").first.text_content()
        assert SCRIPT in seen
        assert "<|im_start|>system" in seen
        assert "␛[31mred␛[0m␇⟨U+202E⟩txt.exe⟨U+200B⟩" in seen
        assert [mark.text_content() for mark in page.locator(".mark").all()][1] == "</script><b>bold</b>"
        assert "␛[2J" in page.locator(".action code").first.text_content()
        assert "the teacher's answer" in page.locator(".teacher-text").text_content()
        assert page.locator("main img, main b, main script").count() == 0
        assert page.locator(".turn h4").all_text_contents() == ["Turn 0", "Turn 1", "Turn 2"]  # the newest rollout
        assert page.locator(".taught .badge").text_content() == "the teacher's turn"
        assert SCRIPT in page.locator(".taught .action code").text_content()
        assert [SCRIPT in text for text in page.locator(".taught .seen").all_text_contents()] == [True, True]
        page.locator("a.back").click()
        page.get_by_role("link", name="evil/1").click()
        page.wait_for_selector(".teacher-turns")
        assert page.locator(".turn h4").all_text_contents() == ["Turn 0", "Turn 2"]
        assert "1 turn before this one, no rows" in page.locator(".teacher-turns").text_content()
        assert page.locator("main img, main b, main script").count() == 0


def pick(page: Any, label: str, value: str) -> None:
    page.locator(f"select[data-key='picker/{label}']").select_option(value)
    settle(page)


@pytest.mark.browser
def test_training_and_answers_are_seen_over_any_axis(tmp_path: Path) -> None:
    """The axis and the lines stay with the views; seeds are a band with its runs; warnings stand above the curves."""
    runs = [make_run(tmp_path / f"divopd-{seed}", seed=seed, rates=[10, 40 + seed]) for seed in range(2)]
    silent = Answers(turns=10, tokens=50, longest=8, cut=2, without_action=6, invalid_actions=0)
    spoken = replace(make_evaluation_record(3, success_rate=40.0), answers={"pick": silent, "heat": silent})
    replace_record(runs[0], "evaluation", 3, encode_evaluation(spoken))
    runs.append(make_run(tmp_path / "vanilla", method="vanilla", rates=[10, 20]))
    write_report(runs, tmp_path / "report.html")
    with opened((tmp_path / "report.html").as_uri(), offline=True) as page:
        warnings = page.get_by_label("Warnings")
        assert "60 % of the turns of the last evaluation did nothing" in warnings.text_content()
        assert "divopd-0, update 2" in warnings.text_content()
        curves = page.locator("figure[aria-label='Success rate']")
        assert "divopd, 2 seeds" in curves.locator(".legend").text_content()
        assert curves.locator("g[aria-label=area] path").count() == 1
        pick(page, "Lines", "runs")
        assert curves.locator("g[aria-label=area] path").count() == 0
        pick(page, "Over", "generated_tokens")
        open_view(page, "training")
        figures = page.locator("figure")
        assert figures.count() == 13
        assert "explorer tokens →" in figures.first.text_content()
        assert "divopd-1" in figures.first.locator(".legend").text_content()
        pick(page, "Running mean", "1")
        assert "Running mean of" not in figures.first.text_content()
        open_view(page, "answers")
        assert "60.0 %" in page.locator("tr", has_text="heat").text_content()
        pick(page, "Range", "half")
        pick(page, "Kind of task", "heat")
        assert "heat only" in page.locator("figure").first.text_content()
        open_view(page, "depth")
        assert "rollouts that have it" in page.locator("table").first.text_content()
        open_view(page, "cost")
        page.get_by_role("button", name="teacher tokens", exact=True).click()
        settle(page)
        assert "Teacher tokens to each target" in page.locator("#content").text_content()
