"""The view of a run: what it says in a terminal and elsewhere, and that nothing it shows can steer a terminal."""

from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("pydantic", reason="for want of the extra train")
from rich.console import Console

from divopd.config import Config
from divopd.records import LogprobGap
from divopd.report.terminal import TerminalView, duration, sparkline
from divopd.store import Store
from fake_runs import SETTINGS, evaluation, make_run

CONFIG = Config.model_validate({"learner": {"updates": 6}, "composer": SETTINGS})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("terminal") / "my run", rollouts=9)


def show(run: Path, *, terminal: bool, first: int = 0, **kinds: float) -> str:
    """All that a view writes while it hears of a run from update `first` on."""
    out = StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, markup=False, highlight=False, _environ={})
    with Store.open_read_only(run) as store, TerminalView(CONFIG, console=console) as view:
        for update, record in store.update_records(first=first).items():
            if update % 3 == 0:
                view.evaluated(evaluation(update, 10.0 + update, **kinds))
            view.updated(record)
    return out.getvalue()


def test_elsewhere_every_event_is_one_line(run: Path) -> None:
    """Without a terminal: no control sequences, a line per update and per evaluation, advice after an evaluation."""
    out = show(run, terminal=False)
    assert "\x1b" not in out
    lines = out.splitlines()
    assert sum(line.startswith("update ") for line in lines) == 6
    assert [line for line in lines if line.startswith("version ")] == [
        "version 0: success rate 10.0 % of 20 tasks",
        "version 3: success rate 13.0 % of 20 tasks",
    ]
    assert any(line.startswith("  queue: ") for line in lines)
    assert "update 6/6; " in lines[-1]
    for word in ("effective rollouts", "dead rows", "stale", "aged out", "queued", "log probs 2.0e-06", "load", "left"):
        assert word in lines[-1]


def test_a_terminal_sees_everything_at_once(run: Path) -> None:
    """Success rate with a sparkline, queue, batch, exits, seconds by stage, progress and time left."""
    out = show(run, terminal=True)
    last = " ".join(out[out.rindex("success rate") :].split())
    for word in (
        "13.0 %",
        "▆█",
        "best",
        "queue",
        "█",
        "effective rollouts",
        "expired so far",
        "2.0e-06 nats from those at generation",
        "forward",
        "waited 2.0 virtual seconds",
        "0.5 with nothing to train",
        "6/6",
        "left",
    ):
        assert word in last


def test_the_cursor_comes_back_after_an_error(run: Path) -> None:
    """A run that fails leaves a usable terminal."""
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, _environ={})
    with pytest.raises(KeyboardInterrupt), TerminalView(CONFIG, console=console):
        raise KeyboardInterrupt
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_a_resumed_run_counts_from_where_it_is(run: Path) -> None:
    """The view of a resume hears of later updates only, and knows how many were made before."""
    assert "update 5/6" in show(run, terminal=False, first=4)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_restart_is_told_before_anything_else_is_known(terminal: bool) -> None:
    """A process may die before the first evaluation."""
    out = StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, markup=False, highlight=False, _environ={})
    with TerminalView(CONFIG, console=console) as view:
        view.told("the explorer-0 died (exit code -9) and is started again")
        view.told("the teacher \x1b]0;owned\x07 is away")
    assert "the explorer-0 died (exit code -9) and is started again" in out.getvalue()
    assert "owned" in out.getvalue()
    assert "\x1b]" not in out.getvalue()


def test_time_left_of_a_live_run_is_by_its_own_clock(tmp_path: Path) -> None:
    """Updates that are heard of all at once took as long as they say: 10 seconds each, and one of four is left."""
    live = make_run(tmp_path / "live", clock="wall", rates=[0, 50])
    config = CONFIG.model_copy(update={"clock": "live", "learner": replace(CONFIG.learner, updates=4)})
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, markup=False, highlight=False, _environ={})
    with Store.open_read_only(live) as store, TerminalView(config, console=console) as view:
        for record in store.update_records().values():
            view.updated(record)
    assert "update 3/4, 10 s left" in out.getvalue()
    assert "wait, compose, publish 9.2" in out.getvalue()


def test_log_probabilities_that_come_apart_are_told_once(run: Path) -> None:
    """Learner and generation differ beyond the limit: one line when it begins, not one at every update."""
    out = StringIO()
    console = Console(file=out, width=100, markup=False, highlight=False, _environ={})
    with Store.open_read_only(run) as store, TerminalView(CONFIG, console=console) as view:
        for update, record in store.update_records().items():
            assert record.learner is not None
            gap = LogprobGap(update - 1, tokens=9, mean=0.85 if update in (2, 3, 5) else 0.09, largest=3.0)
            view.updated(replace(record, learner=replace(record.learner, logprob_gap=gap)))
    told = [line for line in out.getvalue().splitlines() if "differ from those at generation" in line]
    assert [line.partition(":")[0] for line in told] == ["update 2", "update 5"]
    assert "by 0.85 nats on average (rows 1 updates old); expected at most 0.1" in told[0]


@pytest.mark.parametrize("terminal", [False, True])
def test_names_of_tasks_cannot_steer_the_terminal(run: Path, terminal: bool) -> None:
    """Escape sequences and markup in the name of a kind of task are shown, not obeyed."""
    kinds: dict[str, Any] = {"\x1b]0;owned\x07": 1.0, "[blink]heat[/blink]": 2.0, "a\nb\u202e": 3.0}
    out = show(run, terminal=terminal, **kinds)
    assert "owned" in out
    assert "\x1b]" not in out
    assert "\u202e" not in out
    assert "[blink]heat[/blink] 2 %" in out


def test_the_summary_names_only_what_exists(run: Path) -> None:
    """Figures of the whole run, and commands that are there, with a rollout and an update of this run."""
    out = StringIO()
    TerminalView(CONFIG, console=Console(file=out, width=120, markup=False, _environ={})).summary(run)
    text = out.getvalue()
    for word in (
        "10.0 % at version 0",
        "50.0 % at version 6",
        "peak 50.0 %",
        "1 min 00 s of virtual",
        "never selected",
    ):
        assert word in text
    commands: list[list[str]] = [line.split() for line in text.splitlines() if line.startswith("  divopd ")]
    assert {command[1] for command in commands} == {"compare", "explain", "why", "export"}
    assert all(find_spec(f"divopd.cli.{command[1]}") for command in commands)
    assert f"'{run}'" in text
    rollout = next(command[-1] for command in commands if command[1] == "why")
    with Store.open_read_only(run) as store:
        assert store.turns_of(rollout)


def test_dead_rows_are_told_apart_from_trained_turns(tmp_path: Path) -> None:
    """After every update and in the summary: both numbers, which add up to the rows."""
    vanilla = make_run(tmp_path / "vanilla", method="vanilla", rollouts=9)
    with Store.open_read_only(vanilla) as store:
        rows = [turn for turn in store.stored_turns() if turn.fate.kind == "trained"]
        last = [turn for turn in rows if turn.fate.update == store.updates - 1]
    dead, dead_last = (sum(turn.reason is not None for turn in some) for some in (rows, last))
    assert dead > dead_last > 0
    line = show(vanilla, terminal=False).splitlines()[-1]
    assert f" {len(last) - dead_last} trained, {dead_last} dead, " in line
    out = StringIO()
    TerminalView(CONFIG, console=Console(file=out, width=120, markup=False, _environ={})).summary(vanilla)
    assert f" {len(rows) - dead} trained, {dead} dead, " in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min 00 s"), (61, "1 min 01 s"), (3599.7, "1 h 00 min"), (9000, "2 h 30 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sparklines_grow_with_the_rates() -> None:
    """The largest rate is a full block, none is an error, and only the newest are shown."""
    rates: list[Any] = [0, 10, 20]
    assert sparkline(rates) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert len(sparkline([1.0] * 100)) == 40
