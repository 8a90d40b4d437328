"""All audits: how they are called, what each needs, and what `--first` and `--uncapped` do."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from divopd.audits.subject import load_subject
from divopd.audits.table import AUDITS
from divopd.audits.utilization import audit_uncapped
from divopd.cli import main
from divopd.errors import InputError
from divopd.methods import make_composer
from divopd.replay import journal_replay
from divopd.report.runs import utilization_so_far
from divopd.store.views import StoreViews
from divopd.synth import PRESETS, synthesize
from divopd.turns import write_turns


def test_five_audits_are_light() -> None:
    """Utilization, selection, retention, cost and time import neither torch nor anything that draws or prints."""
    code = (
        "import sys, divopd.audits.table\n"
        "import divopd.audits.utilization, divopd.audits.selection, divopd.audits.retention, divopd.audits.cost\n"
        "import divopd.audits.timing\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'rich', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["utilization", "selection", "retention"])
def test_a_recording_is_audited_from_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A table, a JSON file of the same figures, and a picture; --json prints the figures."""
    pytest.importorskip("matplotlib", reason="for want of the extra plots")
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=8, seed=0))
    arguments = ["audit", name, str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "out"), "--batch-size", "16"]
    assert main(arguments) == 0
    assert name in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / f"{name}.png").stat().st_size > 10_000
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written["t.jsonl"]


def test_audits_say_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A recording has no weights, no fates and no clock; a wrong name is told the nearest one."""
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=3, seed=0))
    path = str(tmp_path / "t.jsonl")
    for arguments, sentence in (
        (["cost", path], "no fates and no clock"),
        (["kinds", path], "nothing starves"),
        (["time", path], "no clock"),
        (["retenton", path], "did you mean 'retention'?"),
        (["selection", str(tmp_path / "none")], "no such run or recording"),
        (["selection", path, "--cap", "few"], "--cap is 'few'"),
        (["selection", path, "--first", "0"], "--first is '0'; expected a number, 1 or more"),
        (["selection", path, "--first", "few"], "--first is 'few'; expected a number, 1 or more"),
        (["ledger", path, "--first", "2"], "the ledger is checked whole"),
        (["cost", path, "--first", "2"], "cost counts what a whole run did"),
        (["kinds", path, "--first", "2"], "kinds counts what a whole run did"),
        (["selection", path, "--uncapped", path], "expected `audit utilization` of one run"),
        (["utilization", path, "--uncapped", str(tmp_path / "none")], "no such run or recording"),
    ):
        assert main(["audit", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    pytest.importorskip("torch", reason="for want of the extra train")
    for name in ("stability", "geometry"):
        assert main(["audit", name, path]) == 2
        assert "no weights of a policy version" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["utilization", "selection", "retention"])
def test_the_first_updates_are_a_recording_that_ends_there(name: str, tmp_path: Path) -> None:
    """What arrived later is not there, and nothing is selected later; more than there are is all of them."""
    turns = list(synthesize(PRESETS["alfworld"], updates=12, seed=0))
    write_turns(tmp_path / "whole.jsonl", turns)
    write_turns(tmp_path / "begin.jsonl", [turn for turn in turns if turn.available_at < 7])

    def audited(file: str, **changes: Any) -> dict[str, Any]:
        return AUDITS[name](tmp_path / file, {"batch_size": 16, **changes}, lambda _: None)

    assert audited("whole.jsonl", first=7) == audited("begin.jsonl") != audited("whole.jsonl")
    assert audited("whole.jsonl", first=99) == audited("whole.jsonl")


def test_the_schedule_of_turnopd_is_that_of_the_whole_run(tmp_path: Path) -> None:
    """Looking at fewer updates does not make the run a shorter one."""
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=12, seed=0))
    assert load_subject(tmp_path / "t.jsonl", first=7).settings.total_updates == 12


def uncapped_run(folder: Path, method: str = "divopd", *, cap: int | None = None) -> Path:
    turns = list(synthesize(PRESETS["alfworld"], updates=9, seed=1))
    journal_replay(turns, make_composer(method, batch_size=16, cap=cap), updates=9, run=folder)
    return folder


def test_divopd_without_a_cap_has_a_row_from_its_own_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The figures of that run, whole, in the table of another; the bound of the table stays that of the audited run."""
    pytest.importorskip("matplotlib", reason="for want of the extra plots")
    write_turns(tmp_path / "t.jsonl", synthesize(PRESETS["alfworld"], updates=8, seed=0))
    uncapped = uncapped_run(tmp_path / "uncapped")
    arguments = ["audit", "utilization", str(tmp_path / "t.jsonl"), "--first", "6", "--batch-size", "4"]
    arguments += ["--out", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    without = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--json", "--uncapped", str(uncapped)]) == 0
    audited = json.loads(capsys.readouterr().out)
    own = audited.pop("divopd, no cap, own run")
    assert audited == without
    with StoreViews.open(uncapped) as store:
        tallies = store.rollout_tallies(available_before=9)
        expected = utilization_so_far(tallies, store.journal(0).settings, updates=9)
    assert own["utilization"] == asdict(expected)
    assert main([*arguments, "--uncapped", str(uncapped)]) == 0
    out = capsys.readouterr().out
    assert "divopd, no cap, own run" in out
    bound = without["vanilla"]["utilization"]["unreachable"]
    assert f"no composer below {bound:.1%}" in " ".join(out.split())
    assert f"{bound:.1%}" != f"{expected.unreachable:.1%}"


@pytest.mark.parametrize(("method", "cap"), [("divopd", 4), ("divopd-base", None)])
def test_another_run_is_not_taken_for_an_uncapped_one(tmp_path: Path, method: str, cap: int | None) -> None:
    run = uncapped_run(tmp_path / "run", method, cap=cap)
    with pytest.raises(InputError, match=f"a run of {method} with cap {cap or 'none'}; expected one of divopd without"):
        audit_uncapped(run)


@pytest.mark.parametrize(
    "name", ["utilization", "selection", "retention", "stability", "geometry", "cost", "time", "kinds"]
)
def test_a_run_is_audited(name: str, small_run: Path, capsys: pytest.CaptureFixture) -> None:
    """Every audit works on a run and leaves its files in the run's folder."""
    pytest.importorskip("matplotlib", reason="for want of the extra plots")
    assert main(["audit", name, str(small_run)]) == 0
    assert "run" in capsys.readouterr().out
    assert (small_run / "audits" / f"{name}.json").is_file()
    assert (small_run / "audits" / f"{name}.png").stat().st_size > 10_000
