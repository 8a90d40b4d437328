"""Comparing runs: figures by hand, by the replay and by the printed tables of Student's t."""

import argparse
import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divopd.cli import compare
from divopd.errors import InputError
from divopd.methods import make_composer
from divopd.records import encode_update
from divopd.replay import load_recording, replay, utilization_of
from divopd.report.page.data import learning
from divopd.report.run_comparison import RunComparison, compare_runs, different_settings
from divopd.report.runs import Costs, named_runs, read_run, run_folders
from divopd.report.seeds import interval_of, ratio_interval_of, t_quantile
from divopd.store import Store
from divopd.store.views import StoreViews
from divopd.turns import Fate, write_turns
from fake_runs import SETTINGS, evaluation, make_run, replace_record
from strategies import turn


def call(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args([str(argument) for argument in arguments]))


def compared(*folders: Path) -> RunComparison:
    return compare_runs([read_run(folder) for folder in folders])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A vanilla and a divopd run of the same seed; divopd reaches 40 % one evaluation earlier and is longer."""
    folder = tmp_path_factory.mktemp("pair")
    vanilla = make_run(folder / "vanilla", method="vanilla", rates=[10, 20, 44])
    return vanilla, make_run(folder / "divopd", method="divopd", rates=[10, 40, 50, 60])


def test_rates_are_those_of_the_spec(pair: tuple[Path, Path]) -> None:
    """Peak, last five, best five; nAUC up to the smallest final version."""
    vanilla, divopd = compared(*pair).standings
    assert (vanilla.peak, divopd.peak) == (44, 60)
    assert (vanilla.final_five, vanilla.best_five) == (pytest.approx(74 / 3), pytest.approx(74 / 3))
    assert vanilla.final_five_sd == pytest.approx(stdev([10, 20, 44]))
    assert divopd.nauc == pytest.approx((25 * 3 + 45 * 3) / 6)
    assert compared(*pair).budget == 6


def test_cost_to_the_target_in_every_currency(pair: tuple[Path, Path]) -> None:
    """τ is the multiple of 5 below vanilla's peak; an evaluation costs what its version cost; waits are no work."""
    comparison = compared(*pair)
    assert (comparison.target, comparison.reference, comparison.notes) == (40, "vanilla", ())
    vanilla, divopd = comparison.standings
    assert (vanilla.version_at_target, divopd.version_at_target) == (6, 3)
    spent = divopd.costs_to_target
    assert spent is not None
    assert (spent.elapsed_s, spent.learner_s, spent.scored_tokens, spent.generated_tokens) == (30, 24, 3000, 300)
    with Store.open_read_only(pair[1]) as store:
        trained = sum(turn.tokens for update in range(3) for turn in store.batch(update).turns)
    assert spent.trained_tokens == trained
    assert vanilla.costs_to_target is not None
    assert divopd.ratios["trained_tokens"] == pytest.approx(vanilla.costs_to_target.trained_tokens / trained)
    assert divopd.ratios["elapsed_s"] == 2
    assert set(divopd.ratios) == set(Costs.__dataclass_fields__)


def test_gpu_time_has_all_ranks_and_wall_time_steps_and_waits(tmp_path: Path) -> None:
    """A live update takes 10 seconds: 7 of the learner's step, 2 of its wait, 1 to publish, which is neither."""
    run = make_run(tmp_path / "run", clock="wall", rates=[0, 50], config={"learner": {"ranks": 2}})
    reached = compared(run).standings[0].costs_to_target
    assert reached is not None
    assert (reached.learner_s, reached.elapsed_s) == (3 * 7 * 2, 3 * (7 + 2))
    with StoreViews.open(run) as store:
        last = learning(store)["evaluations"][-1]
    assert (last["learner_s"], last["elapsed_s"]) == (reached.learner_s, reached.elapsed_s)


def test_a_single_evaluation_has_no_deviation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "short", method="vanilla", rates=[None, 44])
    assert compared(run).standings[0].final_five_sd is None
    assert call(run) == 0
    assert "±" not in capsys.readouterr().out


def test_a_target_that_is_never_reached_costs_nothing_known(tmp_path: Path) -> None:
    """A run below τ has no cost and no ratio; a vanilla run that learns nothing gives no target."""
    vanilla = make_run(tmp_path / "v", method="vanilla", rates=[0, 50])
    slow = make_run(tmp_path / "d", rates=[0, 20])
    standing = compared(vanilla, slow).standings[1]
    assert (standing.costs_to_target, set(standing.ratios.values())) == (None, {None})
    flat = make_run(tmp_path / "flat", method="vanilla", rates=[4, 4])
    comparison = compared(flat, slow)
    assert comparison.target == 0
    assert comparison.standings[1].costs_to_target is None
    assert "below 5 %" in comparison.notes[0]


def test_cost_to_several_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that peaks a point below vanilla misses τ, and its cost to the lower targets is told all the same."""
    vanilla = make_run(tmp_path / "vanilla", method="vanilla", rates=[10, 55, 76])
    divopd = make_run(tmp_path / "divopd", rates=[10, 62, 74])
    comparison = compared(vanilla, divopd)
    assert (comparison.target, comparison.targets) == (75, (50, 60, 70, 75))
    first, second = comparison.standings
    assert [one.version for one in first.to_targets] == [3, 6, 6, 6]
    assert [one.version for one in second.to_targets] == [3, 3, 6, None]
    assert [one.ratios["elapsed_s"] for one in second.to_targets] == [1, 2, 1, None]
    sixty = second.to_targets[1]
    assert (sixty.target, sixty.costs and sixty.costs.elapsed_s) == (60, 30)
    assert second.to_targets[-1].costs is None
    assert call(vanilla, divopd) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if "50 %" in line]
    assert "nAUC@6" in line
    assert all(target in line for target in ("60 %", "70 %", "75 % (τ)"))
    assert f"update 3, {sixty.ratios['trained_tokens']:.2f}×" in out
    assert [line.split()[-2:] for line in out.splitlines() if line.startswith(" divopd") and "reached" in line] == [
        ["not", "reached"],
        ["–", "–"],
    ]


def test_targets_that_nobody_reaches_are_not_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without any target from vanilla the fixed ones are still shown."""
    flat = make_run(tmp_path / "flat", method="vanilla", rates=[4, 4])
    comparison = compared(flat)
    assert (comparison.target, comparison.targets) == (0, (50, 60, 70))
    assert [one.costs for one in comparison.standings[0].to_targets] == [None] * 3
    assert call(flat) == 0
    assert capsys.readouterr().out.count("not reached") == 3


def test_dead_rows_are_not_trained_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What vanilla trains as dead rows and divopd discards as invalid is told apart from what taught something."""
    folders = [make_run(tmp_path / method, method=method, rollouts=9) for method in ("vanilla", "divopd")]
    vanilla, divopd = (one.fates for one in compared(*folders).standings)
    for folder, fates in zip(folders, (vanilla, divopd), strict=True):
        with Store.open_read_only(folder) as store:
            turns = list(store.stored_turns())
            assert sum(fates.values()) == store.account().put == len(turns)
        assert fates["trained"] == sum(turn.fate.kind == "trained" and turn.reason is None for turn in turns)
        assert fates["dead"] == sum(turn.fate.kind == "trained" and turn.reason is not None for turn in turns)
    assert vanilla["dead"] > 0
    assert vanilla["invalid"] == 0
    assert divopd["dead"] == 0
    assert divopd["invalid"] > 0
    assert call(*folders) == 0
    [put] = {sum(vanilla.values()), sum(divopd.values())}
    line = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:2] == ["vanilla", str(put)])
    assert line.split()[2:4] == [f"{vanilla['trained'] / put:.1%}", f"{vanilla['dead'] / put:.1%}"]


def test_arrivals_by_drains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Turns put per second, by turns read and not stale per second of work; of an older record that is not known."""
    run = make_run(tmp_path / "run", rollouts=9)
    with Store.open_read_only(run) as store:
        turns = list(store.stored_turns())
        records = store.update_records()
    drained = [turn for turn in turns if turn.first_seen is not None and turn.fate != Fate("stale", turn.first_seen)]
    assert len(drained) < len(turns)
    expected = (len(turns) / 60) / (len(drained) / 48)  # six updates of 10 seconds, 2 of them waiting
    assert compared(run).standings[0].arrival_per_drain == pytest.approx(expected)
    assert call(run) == 0
    assert f" {expected:.2f} " in capsys.readouterr().out
    old = encode_update(records[2])
    del old["drained"]
    replace_record(run, "update", 2, old)
    assert compared(run).standings[0].arrival_per_drain is None
    assert call(run) == 0
    assert " n/a " in capsys.readouterr().out


@pytest.mark.parametrize("method", ["vanilla", "divopd", "divopd-adaptive"])
def test_use_of_experience_equals_the_replay(tmp_path: Path, method: str) -> None:
    """Never selected, bound and Gini read from a run are those of a replay of its recording."""
    folder = make_run(tmp_path / "run", method=method, rates=[0, 10, 20], rollouts=9)
    recording = load_recording(folder)
    decisions = list(replay(recording, make_composer(method, **SETTINGS)))
    expected = utilization_of(recording, decisions, batch_size=8, max_staleness=2)
    used = read_run(folder).utilization
    assert used == expected
    assert 0 <= used.unreachable <= used.never_selected


def named(target: object) -> dict[str, Any]:
    return {"evaluation": {"target": target}}


def test_a_setting_may_name_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no setting in which runs differ; whoever asks for another gets that one."""
    vanilla = make_run(tmp_path / "vanilla", method="vanilla", rates=[10, 40, 60], config=named(35))
    divopd = make_run(tmp_path / "divopd", rates=[10, 50, 60])
    comparison = compared(vanilla, divopd)
    assert (comparison.target, comparison.notes) == (35, ())
    assert [one.version_at_target for one in comparison.standings] == [3, 3]
    asked = compare_runs([read_run(folder) for folder in (vanilla, divopd)], target=55)
    assert (asked.target, [one.version_at_target for one in asked.standings]) == (55, [6, 6])
    assert call(vanilla, divopd, "--target", "45") == 0
    out = capsys.readouterr().out
    assert "cost to 45 % (τ, as asked for)" in out
    assert call(vanilla, divopd) == 0
    assert "cost to 35 % (τ, named by evaluation.target)" in capsys.readouterr().out


def test_a_target_is_asked_for_where_none_is_named(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*pair, "--target", "20", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["target"], [one["version_at_target"] for one in told["standings"]]) == (20, [3, 3])


def test_a_target_above_the_peak_of_vanilla_is_said(tmp_path: Path) -> None:
    """Then vanilla has no cost to compare with."""
    vanilla = make_run(tmp_path / "vanilla", method="vanilla", rates=[10, 40], config=named(70))
    divopd = make_run(tmp_path / "divopd", rates=[10, 80], config=named(70))
    comparison = compared(vanilla, divopd)
    assert comparison.target == 70
    assert "above the lowest peak of vanilla (40.0 %)" in comparison.notes[0]
    assert (comparison.standings[1].version_at_target, comparison.standings[1].ratios["elapsed_s"]) == (3, None)


def test_a_setting_of_later_is_no_difference_where_it_is_off(tmp_path: Path) -> None:
    """Runs of before warm-up and schedules were as runs are that say so; others are told apart."""
    old = make_run(tmp_path / "old")
    new = make_run(tmp_path / "new", seed=1, config={"learner": {"lr": 1e-4, "warmup": 0, "schedule": "constant"}})
    other = make_run(tmp_path / "other", seed=2, config={"learner": {"lr": 1e-4, "warmup": 5, "schedule": "constant"}})
    runs = [read_run(run) for run in (old, new, other)]
    assert different_settings(runs[:2]) == []
    assert different_settings(runs) == ["learner.warmup"]


def test_runs_that_name_different_targets_have_vanillas(tmp_path: Path) -> None:
    """What is no target in a stranger's configuration names none."""
    vanilla = make_run(tmp_path / "vanilla", method="vanilla", rates=[10, 44], config=named(20))
    divopd = make_run(tmp_path / "divopd", rates=[10, 80], config=named(30))
    comparison = compared(vanilla, divopd)
    assert comparison.target == 40
    assert "different targets (evaluation.target: 20, 30)" in comparison.notes[0]
    for number, wrong in enumerate(("many", -5, 700, [5])):
        other = make_run(tmp_path / f"wrong-{number}", method="vanilla", rates=[10, 44], config=named(wrong))
        assert compared(other).target == 40


@pytest.mark.parametrize("wrong", ["0", "73", "105", "-5", "many", "7.5"])
def test_a_target_is_a_multiple_of_five(pair: tuple[Path, Path], wrong: str) -> None:
    with pytest.raises(InputError, match="expected a success rate in percent, a multiple of 5 from 5 to 100"):
        call(*pair, f"--target={wrong}")


def test_a_short_run_of_divopd_focus_shortens_no_comparison(tmp_path: Path) -> None:
    """U is the smallest last evaluated version of the others; an update after the last evaluation does not count."""
    vanilla = make_run(tmp_path / "vanilla", method="vanilla", rates=[0, 20, 40, 60])
    divopd = make_run(tmp_path / "divopd", rates=[0, 30, 60, None])
    focus = make_run(tmp_path / "focus", method="divopd-focus", rates=[0, 50])
    comparison = compared(vanilla, divopd, focus)
    assert comparison.budget == 6
    assert [one.nauc for one in comparison.standings] == pytest.approx([20, 30, 37.5])  # flat after focus' last
    assert compared(focus).budget == 3


def test_without_vanilla_the_first_run_is_the_reference(tmp_path: Path) -> None:
    """τ comes from the first run's peak, and a note says so."""
    first = make_run(tmp_path / "first", rates=[0, 33])
    second = make_run(tmp_path / "second", method="top-b", rates=[0, 70])
    comparison = compared(first, second)
    assert (comparison.target, comparison.reference) == (30, "first")
    assert "no vanilla run among them" in comparison.notes[0]
    assert comparison.standings[1].ratios["elapsed_s"] == 1


# ── seeds ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_quantiles_are_those_of_the_printed_tables() -> None:
    """Two-sided 95 % and 99 % of Student's t."""
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042, 120: 1.980}
    for degrees, quantile in printed.items():
        assert t_quantile(degrees) == pytest.approx(quantile, abs=6e-4)
    assert t_quantile(4, coverage=0.99) == pytest.approx(4.604, abs=6e-4)


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=8), st.floats(0.5, 3))
def test_intervals_move_with_their_values(values: list[float], factor: float) -> None:
    """A scaled sample has a scaled interval, also for ratios, where it is a factor on all three numbers."""
    for interval in (interval_of, ratio_interval_of):
        before, after = interval(values), interval([factor * value for value in values])
        assert before.low <= before.mean <= before.high
        assert after.mean == pytest.approx(factor * before.mean)
        assert after.high == pytest.approx(factor * before.high)


def test_seeds_are_paired(tmp_path: Path) -> None:
    """Differences are taken within a seed: seeds that differ much among themselves do not blur a steady gain."""
    folders = []
    for seed, base in enumerate((20, 40, 60)):
        folders += [
            make_run(tmp_path / f"v{seed}", method="vanilla", seed=seed, rates=[0, base]),
            make_run(tmp_path / f"d{seed}", seed=seed, rates=[0, base + 4 + seed]),
        ]
    folders.append(make_run(tmp_path / "d9", seed=9, rates=[0, 90]))
    vanilla, divopd = compared(*folders).methods
    assert (vanilla.seeds, vanilla.pairs, vanilla.differences) == (3, 0, {})
    assert (divopd.seeds, divopd.pairs) == (4, 3)
    gain = divopd.differences["peak"]
    assert gain.mean == pytest.approx(5)
    assert gain.high - gain.mean == pytest.approx(4.303 * 1 / 3**0.5, abs=1e-3)
    assert divopd.means["peak"].mean == pytest.approx((24 + 45 + 66 + 90) / 4)
    assert compared(*folders).target == 20
    assert divopd.ratios["elapsed_s"].mean == 1


def test_other_settings_are_no_seeds(tmp_path: Path) -> None:
    """Runs of one method with another learning rate are told apart and not averaged; a note says what differs."""
    folders = [
        make_run(tmp_path / f"{lr}-{seed}", seed=seed, config={"learner": {"lr": lr}})
        for lr in (1e-4, 3e-4)
        for seed in (0, 1)
    ]
    comparison = compared(*folders)
    assert [method.label for method in comparison.methods] == [
        "divopd (learner.lr=0.0001)",
        "divopd (learner.lr=0.0003)",
    ]
    assert any("learner.lr" in note for note in comparison.notes)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────


def refuse(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_json_has_every_figure(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*pair, "--json") == 0
    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert told["target"] == 40
    assert [one["run"] for one in told["standings"]] == ["vanilla", "divopd"]
    assert told["standings"][1]["costs_to_target"]["elapsed_s"] == 30


def test_tables_and_picture(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything the table of the spec has is printed, with the ratio beside the cost; names are no markup."""
    pytest.importorskip("matplotlib", reason="for want of the extra plots")
    odd = make_run(tmp_path / "[red]$a_{b}$", method="vanilla", seed=1, rates=[5, 45, 45])
    picture = tmp_path / "curves.png"
    assert call(*pair, odd, "--figure", picture) == 0
    out = capsys.readouterr().out
    for word in ("peak", "final-5", "best-5", "nAUC@6", "cost to 40 %", "virtual", "2.00×", "bound", "Gini", "[red]$a"):
        assert word in out
    assert "mean ± 95 % interval over seeds" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_wrong_runs_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """No store, no update, no evaluation, figures of something else, a picture of no known kind."""
    with pytest.raises(InputError, match="nothing"):
        call(tmp_path / "nothing")
    Store.create(tmp_path / "store.db").close()
    with pytest.raises(InputError, match="has not recorded an update"):
        call(tmp_path)
    with pytest.raises(InputError, match="has no evaluation"):
        call(make_run(tmp_path / "run", rates=[None, None]))
    foreign = make_run(tmp_path / "foreign")
    replace_record(foreign, "update", 0, {"virtual_s": 1.0})
    with pytest.raises(InputError, match="not those of this version"):
        call(foreign)
    with pytest.raises(InputError, match=r"\.png"):
        call(foreign, "--figure", "curves.txt")


def test_runs_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last part of a path is a run's name, unless two end alike; a run given twice counts once."""
    first, second = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run")
    assert call(first, second, first / "store.db", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["run"] for one in told["standings"]] == [str(first), str(second)]


def test_a_folder_of_runs_is_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for `report` and `watch`; a run in it that has nothing to compare yet is named and left out."""
    make_run(tmp_path / "runs" / "vanilla", method="vanilla")
    make_run(tmp_path / "runs" / "divopd")
    make_run(tmp_path / "runs" / "unevaluated", rates=[None, None])
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "begun").mkdir()
    Store.create(tmp_path / "runs" / "begun" / "store.db").close()
    assert call(tmp_path / "runs", "--json") == 0
    told = capsys.readouterr()
    assert {one["run"] for one in json.loads(told.out)["standings"]} == {"vanilla", "divopd"}
    left_out = told.err.splitlines()
    assert len(left_out) == 2
    assert all(line.startswith("divopd: left out: ") for line in left_out)
    assert "begun: this run has not recorded an update" in left_out[0]
    assert "unevaluated: this run has no evaluation" in left_out[1]


def test_a_folder_without_a_run_to_compare_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: no run in it to compare.*folder of such folders"):
        call(tmp_path / "empty")
    make_run(tmp_path / "runs" / "unevaluated", rates=[None, None])
    with pytest.raises(InputError, match=r"runs: no run in it to compare"):
        call(tmp_path / "runs")
    capsys.readouterr()


@pytest.mark.parametrize("name", ["turns.jsonl", "notes.txt"])
def test_a_recording_is_no_run(tmp_path: Path, name: str) -> None:
    """The message is about the file that was named, not about a store beside it, and says what compares recordings."""
    write_turns(tmp_path / name, [turn("a", 0)])
    for wrong in (lambda: call(tmp_path / name), lambda: named_runs(run_folders([tmp_path / name]))):
        with pytest.raises(InputError, match=rf"{name} is no run.*divopd replay {tmp_path / name}") as caught:
            wrong()
        assert "store" not in str(caught.value)


def test_a_late_evaluation_costs_what_its_version_had_cost(tmp_path: Path) -> None:
    """On the live clock an evaluation ends updates later; its cost is that of the version all the same."""
    folder = make_run(tmp_path / "run", rates=[0, 0, 0])
    with Store.open(folder) as store:
        assert store.record_evaluation(evaluation(2, 80))
    reached = next(one for one in read_run(folder).evaluations if one.version == 2)
    assert (reached.success_rate, reached.costs.elapsed_s) == (80, 20)


def test_the_live_clock_has_its_own_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A live run says its wall and learner seconds itself, and the table calls them so."""
    folder = make_run(tmp_path / "run", clock="wall", rates=[0, 50])
    run = read_run(folder)
    assert (run.clock, run.costs.elapsed_s, run.costs.learner_s) == ("wall", 27, 21)
    assert call(folder) == 0
    assert "wall" in capsys.readouterr().out
