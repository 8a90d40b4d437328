"""The command line as a user meets it: real processes, exit codes, one-line errors."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from divopd import METHODS
from divopd.cli import COMMANDS, main


def divopd(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "divopd", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "turns.jsonl"
    assert main(["synth", "webshop", "--out", str(path), "--updates", "6"]) == 0
    return path


@pytest.fixture(scope="module")
def run(recording: Path) -> Path:
    folder = recording.parent / "run"
    assert main(["replay", str(recording), "--method", "divopd", "--out", str(folder)]) == 0
    return folder


def test_help_imports_nothing_heavy() -> None:
    """`divopd --help` answers at once because it loads neither numpy nor rich, let alone torch."""
    code = "import sys; from divopd.cli import main; main(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "usage: divopd COMMAND" in out
    for heavy in ("torch", "transformers", "matplotlib", "rich", "numpy", "pydantic"):
        assert f"'{heavy}'" not in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])


def test_the_example_of_every_command_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert f"example:\n  divopd {command}" in capsys.readouterr().out


def test_replay_json_has_the_promised_form(recording: Path) -> None:
    """One object an update, with the keys of ARCHITECTURE.md; a selected turn is [rollout, turn]."""
    out = divopd("replay", recording, "--method", "divopd", "--json", "--batch-size", 16).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["update"] for line in lines] == list(range(6))
    for line in lines:
        assert set(line) == {"update", "selected", "weights", "pending", "stale", "aged_out", "invalid"}
        assert len(line["weights"]) == len(line["selected"]) <= 16
    rollout, turn = lines[-1]["selected"][0]
    assert isinstance(rollout, str)
    assert isinstance(turn, int)


def test_replay_of_a_run_and_of_its_export_agree(run: Path, tmp_path: Path) -> None:
    """A recording is a run's store; exported and read back it is the same experience."""
    exported = tmp_path / "turns.jsonl"
    assert divopd("export", run, exported).returncode == 0
    outputs = [divopd("replay", source, "--method", "divopd-base", "--json").stdout for source in (run, exported)]
    assert outputs[0] == outputs[1] != ""


def test_replay_compares_methods_and_draws(recording: Path, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    done = divopd("replay", recording, "--method", "vanilla", "divopd", "--cap", "none", "--figure", picture)
    assert done.returncode == 0
    assert "vanilla" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_replay_does_not_depend_on_the_hash_seed(recording: Path) -> None:
    """Methods that draw give the same batches in every process, each of which has another hash seed."""
    for method in ("divopd-base", "divopd-focus"):
        first, second = (divopd("replay", recording, "--method", method, "--json").stdout for _ in range(2))
        assert first == second != ""


def test_methods_are_listed() -> None:
    listed = [json.loads(line)["method"] for line in divopd("methods", "--json").stdout.splitlines()]
    assert listed == list(METHODS)


def test_the_ledger_of_a_replay_holds(run: Path) -> None:
    done = divopd("audit", "ledger", run)
    assert done.returncode == 0
    assert "6 updates recomputed" in done.stdout


def newer_store(folder: Path) -> Path:
    path = folder / "newer.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999999")
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    return path


BAD = {
    "unknown command": lambda d, r: ["repley", r],
    "unknown method": lambda d, r: ["replay", r, "--method", "divop"],
    "unknown preset": lambda d, r: ["synth", "alfwold", "--out", d / "x.jsonl"],
    "unknown audit": lambda d, r: ["audit", "leger", d],
    "unknown benchmark": lambda d, r: ["bench", "composr"],
    "no such file": lambda d, r: ["replay", d / "missing.jsonl"],
    "empty file": lambda d, r: ["replay", _write(d / "empty.jsonl", b"")],
    "binary file": lambda d, r: ["replay", _write(d / "binary.jsonl", bytes(range(256)))],
    "broken JSON": lambda d, r: ["replay", _write(d / "broken.jsonl", b'{"rollout": \n')],
    "folder without a store": lambda d, r: ["replay", d],
    "file that is no store": lambda d, r: ["why", r, "synthetic-000001"],
    "store of a newer format": lambda d, r: ["replay", newer_store(d)],
    "cut store": lambda d, r: ["explain", _write(d / "cut.db", b"SQLite format 3\x00 and then nothing"), 0],
    "cap that is no number": lambda d, r: ["replay", r, "--cap", "four"],
    "batch of nothing": lambda d, r: ["replay", r, "--batch-size", 0],
    "load of nothing": lambda d, r: ["synth", "alfworld", "--out", d / "x.jsonl", "--load", 0],
    "overwriting": lambda d, r: ["synth", "alfworld", "--out", r],
    "out of two methods": lambda d, r: ["replay", r, "--method", "divopd", "vanilla", "--out", d / "run"],
    "picture of no format": lambda d, r: ["replay", r, "--method", "divopd", "--figure", d / "picture.doc"],
}  # fmt: skip


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case: str, tmp_path: Path, recording: Path) -> None:
    """No traceback, nothing on stdout, nothing changed."""
    arguments = BAD[case](tmp_path, recording)
    before = recording.read_bytes(), sorted(tmp_path.rglob("*"))
    done = divopd(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("divopd: ")
    assert done.stderr.count("\n") == 1
    assert (recording.read_bytes(), sorted(tmp_path.rglob("*"))) == before


def test_unknown_rollout_and_update_are_named(run: Path) -> None:
    for arguments in (["why", run, "nobody"], ["explain", run, 99]):
        done = divopd(*arguments)
        assert done.returncode == 2
        assert str(arguments[-1]) in done.stderr
