"""`divopd paper`: which runs are one run, which results count, what tables and claims make of them."""

import fcntl
import json
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="for want of the extra train")
pytest.importorskip("matplotlib", reason="for want of the extra plots")

from divopd.cli import main
from divopd.experiments import execution
from divopd.experiments.arms import ARMS, CORE, FIRST_SEED, SETTINGS
from divopd.experiments.execution import Job, missing_jobs
from divopd.experiments.items import ITEMS
from divopd.experiments.paper import gather, make_plan, wanted_by
from divopd.experiments.results import load_result
from divopd.experiments.wanted import Places
from divopd.synth import PRESETS, synthesize
from divopd.turns import write_turns
from paper_results import CONFIGS, base_rate, made_up_audits, store_result, wanted_run

# ── runs and results ──────────────────────────────────────────────────────────────────────────────────────────────


def test_arms_that_want_the_same_run_share_it(tmp_path: Path) -> None:
    """divopd and divopd with k = 4 are one run; another seed, cap or load is another."""
    run = wanted_run(tmp_path, "divopd", 0)
    assert wanted_run(tmp_path, "divopd, k=4", 0).label == run.label
    labels = {wanted_run(tmp_path, arm, seed).label for arm in ARMS for seed in (0, 1)}
    assert len(labels) == 2 * (len(ARMS) - 1)


def test_every_arm_resolves_and_changes_what_it_says(tmp_path: Path) -> None:
    """Loads are shares of the setting's own, as 2 and 6 are of the paper's 16; the others are what their names say."""
    own = wanted_run(tmp_path, "vanilla", 3).config
    assert own.seed == FIRST_SEED + 3
    for load, share in (("low", 2 / 16), ("medium", 6 / 16)):
        in_flight = wanted_run(tmp_path, f"vanilla, {load} load", 0).config.explorer.rollouts_in_flight
        assert in_flight == round(share * own.explorer.rollouts_in_flight)
    assert wanted_run(tmp_path, "vanilla, staleness 4", 0).config.composer.max_staleness == 4
    assert wanted_run(tmp_path, "divopd-base, no cap", 0).config.composer.cap is None
    assert wanted_run(tmp_path, "vanilla-wide", 0).config.method == "vanilla-wide"


def test_a_result_of_other_settings_or_weights_does_not_count(tmp_path: Path) -> None:
    """A stored result is taken only if its configuration and its models are those of the wanted run."""
    run = wanted_run(tmp_path, "divopd", 0)
    assert load_result(run) is None
    store_result(run, [10, 20])
    assert load_result(run) is not None
    other = run.config.resolved()
    other["learner"]["lr"] = 1.0
    store_result(run, [10, 20], config=other)
    assert load_result(run) is None
    store_result(run, [10, 20], models={"student": "other", "teacher": "other"})
    known = any(run.models.values())
    assert (load_result(run) is None) == known
    store_result(run, [10, 20], config=run.config.resolved() | {"a setting of tomorrow": 1})
    assert load_result(run) is not None


def test_ratios_of_whole_rows_are_left_out(tmp_path: Path) -> None:
    """Results of before valid tokens were counted have a ratio of that name, but not that ratio."""
    run = wanted_run(tmp_path, "divopd", 0)
    write_turns(tmp_path / "turns.jsonl", synthesize(PRESETS["alfworld"], updates=4, seed=0))
    audits = made_up_audits(tmp_path / "turns.jsonl")
    store_result(run, [10, 20], audits=audits)
    result = load_result(run)
    assert result is not None
    assert (result.audits, result.run.utilization.scored_per_trained) == (audits, 4.0)
    stored = json.loads(run.result_file.read_text(encoding="utf-8"))
    for figures in (
        stored["utilization"],
        stored["audits"]["cost"],
        *map(_used, stored["audits"]["utilization"].values()),
    ):
        del figures["scored_valid_tokens"], figures["trained_valid_tokens"]
    store_result(run, [10, 20], **{name: stored[name] for name in ("utilization", "audits")})
    old = load_result(run)
    assert old is not None
    assert old.run.utilization.scored_per_trained is old.audits["cost"]["scored_per_trained"] is None
    assert old.audits["cost"]["never_trained_share"] is None
    assert {one["scored_per_trained"] for one in map(_used, old.audits["utilization"].values())} == {None}
    assert old.run.utilization.gini == result.run.utilization.gini


def _used(row: dict[str, Any]) -> dict[str, Any]:
    return row["utilization"]


def test_only_what_is_missing_is_done(tmp_path: Path) -> None:
    """A run that two items want is one job with both audits; a finished one without them has audits to do only."""
    plain, same = wanted_run(tmp_path, "divopd", 0), wanted_run(tmp_path, "divopd, k=4", 0)
    [job] = missing_jobs({plain: ("cost",), same: ("geometry",)})
    assert (set(job.audits), job.trained) == ({"cost", "geometry"}, False)
    store_result(plain, [10, 20], audits={"cost": {}})
    [job] = missing_jobs({plain: ("cost",), same: ("geometry",)})
    assert (job.audits, job.trained) == (("geometry",), True)
    store_result(plain, [10, 20], audits={"cost": {}, "geometry": {}})
    assert not missing_jobs({plain: ("cost",), same: ("geometry",)})


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def all_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up results of all arms, three seeds."""
    out = tmp_path_factory.mktemp("paper")
    write_turns(out / "turns.jsonl", synthesize(PRESETS["alfworld"], updates=6, seed=0))
    audits = made_up_audits(out / "turns.jsonl")
    rng = random.Random(0)
    for arm in ARMS:
        for seed in range(3):
            rates = [10, *(base_rate(arm) + rng.gauss(0, 1) for _ in range(4))]
            store_result(wanted_run(out, arm, seed), rates, audits=audits)
    return out


def test_tables_figures_and_claims_are_made_from_results(all_results: Path, capsys: pytest.CaptureFixture) -> None:
    """Without a single run: every item has a table, data and a picture, and the claims a table and data."""
    arguments = ["--from-results", "--setting", "default", "--seeds", "3", "--configs", str(CONFIGS)]
    assert main(["paper", "--all", *arguments, "--out", str(all_results)]) == 0
    assert "no results" not in capsys.readouterr().err
    for name, item in ITEMS.items():
        text = (all_results / "paper" / f"{name}.md").read_text(encoding="utf-8")
        assert item.where in text
        assert "| --: |" in text or "--:" in text
        json.loads((all_results / "paper" / f"{name}.json").read_text(encoding="utf-8"))
        assert (all_results / "paper" / f"{name}.png").stat().st_size > 8_000
    gradients = (all_results / "paper" / "geometry.md").read_text(encoding="utf-8")
    assert "The oracle projects 1.75 times as far" in gradients
    assert "1.0 of 15 pairs of composers change places" in gradients
    claims = json.loads((all_results / "claims.json").read_text(encoding="utf-8"))
    assert sum(claims["counts"].values()) == len(claims["claims"]) > 45
    assert "## How a verdict is made" in (all_results / "claims.md").read_text(encoding="utf-8")


def test_means_are_over_seeds_and_differences_within_them(tmp_path: Path) -> None:
    """The main table's figures, counted by hand: pairs share a seed, τ is from vanilla, cost ratios are geometric."""
    for seed, (vanilla, ours) in enumerate([(60, 70), (62, 68), (64, 75)]):
        store_result(wanted_run(tmp_path, "vanilla", seed), [0, 10, 20, vanilla, 50], tokens_per_update=300)
        store_result(wanted_run(tmp_path, "divopd", seed), [0, 10, ours, 50, 50], tokens_per_update=100)
    places = Places(CONFIGS, tmp_path / "runs", tmp_path)
    plan = make_plan(places, settings=["default"], seeds=3, overrides=[])
    results = gather(plan, ["divopd"])["default"]
    assert results.target == 60
    assert results.differences("divopd", "vanilla", "peak") == [10, 6, 11]
    peak = results.mean("divopd", "peak")
    assert peak is not None
    assert peak.mean == pytest.approx(fmean([70, 68, 75]))
    assert results.cost_quotients("divopd", "vanilla", "trained_tokens") == pytest.approx([15 * 300 / (10 * 100)] * 3)
    assert results.cost_quotients("vanilla", "divopd", "trained_tokens") == pytest.approx([10 * 100 / (15 * 300)] * 3)


def test_the_list_shows_every_item(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """--list names all items with runs and time, and runs nothing."""
    where = ["--configs", str(CONFIGS), "--out", str(tmp_path), "--setting", "default", "--seeds", "1"]
    assert main(["paper", "--list", *where]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ITEMS)
    assert " min" in text


def test_a_run_that_another_command_is_at_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands at once share the work: the second does not wait for each run of the first."""
    first, *others = [Job(wanted_run(tmp_path, arm, 0), (), trained=False) for arm in ("vanilla", "divopd", "turnopd")]
    done: list[Job] = []

    def trained(job: Job, worker: object, *, patient: bool) -> bool:
        with execution._locked(tmp_path / f"{job.wanted.arm}.lock", patient=patient) as is_ours:
            done.extend([job] if is_ours else [])
            return is_ours

    class Idle:
        def __init__(self, log: Path) -> None: ...
        def stop(self) -> None: ...

    monkeypatch.setattr(execution, "complete", trained)
    monkeypatch.setattr(execution, "Worker", Idle)
    with (tmp_path / "vanilla.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        working = execution.Crew(1, log=tmp_path / "log").work([first, *others])
        over = [job.wanted.arm for job in islice(filter(None, working), 2)]
        assert sorted(over) == ["divopd", "turnopd"]  # two that end within one look come in any order
        assert done == others
    assert [job for job in working if job] == [first]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name one item"),
        (["mian"], "did you mean 'main'?"),
        (["main", "--setting", "nowhere"], "unknown setting"),
        (["main", "--jobs", "0"], "--jobs is 0"),
        (["main", "--configs", "nowhere"], "no configurations"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture) -> None:
    """One line, exit code 2, before anything is run."""
    assert main(["paper", "--configs", str(CONFIGS), *arguments]) == 2
    assert sentence in capsys.readouterr().err


# ── real runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def quick(out: Path, models: Path, *arguments: str) -> list[str]:
    chosen = [f"{role}.model={models / role}" for role in ("student", "teacher")]
    sets = [text for choice in chosen for text in ("--set", choice)]
    return ["paper", *arguments, "--quick", "--configs", str(CONFIGS), "--out", str(out), *sets]


@pytest.fixture(scope="module")
def quick_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all items: they share their runs, as for a user."""
    return tmp_path_factory.mktemp("quick")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ITEMS, "claims"])
def test_quick(name: str, models: Path, quick_out: Path) -> None:
    """The quick mode of every item makes its runs, its table and its picture."""
    assert main(quick(quick_out, models, name)) == 0
    written = quick_out / "claims.md" if name == "claims" else quick_out / "paper" / f"{name}.png"
    assert written.is_file()


@pytest.mark.slow
@pytest.mark.crash
def test_a_stopped_command_goes_on(models: Path, tmp_path: Path) -> None:
    """Stopped in the middle and given again, it comes to the results of one that was never stopped."""
    command = [sys.executable, "-m", "divopd"]
    arguments = ["disagreement", "--seeds", "1"]
    subprocess.run([*command, *quick(tmp_path / "whole", models, *arguments)], check=True, capture_output=True)
    again = [*command, *quick(tmp_path / "stopped", models, *arguments)]
    process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "stopped").rglob("store.db")):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 130
    subprocess.run(again, check=True, capture_output=True)
    for whole in (tmp_path / "whole" / "results").rglob("*.json"):
        stopped = tmp_path / "stopped" / "results" / whole.relative_to(tmp_path / "whole" / "results")
        first, second = (json.loads(file.read_text(encoding="utf-8")) for file in (whole, stopped))
        for name in ("evaluations", "updates", "account"):
            assert first[name] == second[name]


def test_the_preregistered_arms_have_their_seeds_and_come_first(tmp_path: Path) -> None:
    """32 of the four arms from 100 on, 8 of the others, and no run of another arm before the last of theirs."""
    plan = make_plan(Places(CONFIGS, tmp_path, tmp_path), settings=["default"], seeds=None, overrides=[])
    wanted = list(wanted_by(plan, [ITEMS["preregistered"]]))
    seeds = {arm: [run.seed for run in wanted if run.arm == arm] for arm in ("vanilla", "gate-only", "divopd-r")}
    assert seeds["vanilla"] == seeds["gate-only"] == list(range(100, 132))
    assert seeds["divopd-r"] == list(range(100, 108))
    assert [run.arm in CORE for run in wanted] == [True] * 128 + [False] * 16


def test_core_arms_are_main_arms() -> None:
    """What other settings run is part of the main table, and all settings have a title."""
    assert set(CORE) < set(ITEMS["main"].arms)
    assert all(setting.title for setting in SETTINGS.values())
