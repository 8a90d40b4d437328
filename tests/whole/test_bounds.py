"""Sizes, depths and counts of what comes from outside are bounded before memory is allocated or time is spent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from divopd.cli import main
from divopd.config.bounded_yaml import MAX_FILE_BYTES, MAX_NUMBER, parse_yaml
from divopd.errors import InputError, TurnFormatError
from divopd.pipeline.begin import begin_run
from divopd.replay import MAX_UPDATES, recording_of
from divopd.turns import Turn

TURN = {"rollout": "a", "turn": 0, "task": "t", "version": 0, "prompt_truncated": False}
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
)
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))]
)
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from divopd.cli import main
sys.exit(main(sys.argv[1:]))
"""


def in_bounds(*words: object) -> str:
    """What a command says, with 4 GB and a minute of a processor: one line, and exit code 2."""
    command = [sys.executable, "-c", LIMITED, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 2, done.stderr[-500:]
    assert "Traceback" not in done.stderr
    return done.stderr


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_that_arrives_in_a_trillion_updates(tmp_path: Path) -> None:
    """A replay would go through all of them: the line is named instead."""
    file = tmp_path / "turns.jsonl"
    lines = [TURN | {"available_at": 0}, TURN | {"rollout": "late", "available_at": 2**40}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    said = in_bounds("replay", file)
    assert "rollout 'late' turn 0: available_at is 1099511627776" in said
    assert "available_at is" in in_bounds("audit", "utilization", file)


def test_the_last_update_that_a_recording_may_have() -> None:
    """The bound itself is too much, one less is not."""
    assert recording_of([Turn("a", 0, "t", 0, available_at=MAX_UPDATES - 1)]).updates == MAX_UPDATES
    with pytest.raises(TurnFormatError):
        recording_of([Turn("a", 0, "t", 0, available_at=MAX_UPDATES)])


# ── YAML ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "holds more than"),
        (MERGES, "a merge key"),
        ("&a {b: *a}", "nested too deeply"),
        ("&a [*a, *a]", "nested too deeply"),
        ("[" * 50_000, "nested too deeply"),
        ("a: " + "{b: " * 60 + "1" + "}" * 60, "nested too deeply"),
        ("a: " + "1" * 5_000, "is not YAML: ValueError"),
        ("a: 2001-99-99", "is not YAML: ValueError"),
        ("a: 0x" + "f" * 5_000, "is above"),
        (f"composer: {{batch_size: {10**11}}}", "batch_size is above"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("secret: [word: another", "is not YAML at line 1"),
    ],
    ids=[
        "aliases",
        "merge keys",
        "itself",
        "itself twice",
        "brackets",
        "deep",
        "digits",
        "date",
        "hex",
        "number",
        "tag",
        "open",
    ],
)
def test_yaml_goes_no_further_than_its_bounds(text: str, told: str, tmp_path: Path) -> None:
    """In a file and after --set: an InputError that quotes nothing."""
    file = tmp_path / "bad.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told) as refused:
        parse_yaml(text, origin="")
    assert len(str(refused.value)) < 200
    assert "os.system" not in str(refused.value)
    assert main(["config", str(file)]) == 2


def test_large_seeds_and_ordinary_anchors_are_fine() -> None:
    """The bounds leave room for what people write."""
    assert parse_yaml("seed: 99999999999", origin="")["seed"] == 99_999_999_999
    assert parse_yaml("a: &x {b: 1}\nc: *x", origin="") == {"a": {"b": 1}, "c": {"b": 1}}
    assert parse_yaml(f"a: {MAX_NUMBER}", origin="") == {"a": MAX_NUMBER}


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("/dev/zero", "ends in .yaml or .yml"),
        ("/etc/passwd", "ends in .yaml or .yml"),
        ("zero.yaml", "no regular file"),
        ("pipe.yaml", "no regular file"),
        ("folder.yaml", "no regular file"),
        ("large.yaml", "expected at most"),
        ("passwd.yaml", "expected a mapping"),
        ("none.yaml", "cannot be read"),
    ],
)
def test_only_small_regular_yaml_files_are_extended(
    base: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Devices, pipes, folders, files of others: refused before a byte is read, or without telling what is in them."""
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "passwd.yaml").write_text("root:x:0:0:secret words\n", encoding="utf-8")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "mine.yaml").write_text(f"extends: {base}\n", encoding="utf-8")
    assert main(["config", str(tmp_path / "mine.yaml")]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "secret" not in said
    assert "root" not in said.replace(str(tmp_path), "")


def test_a_long_chain_of_files_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each may extend the next, up to a number."""
    for number in range(50):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n", encoding="utf-8")
    assert main(["config", str(tmp_path / "0.yaml")]) == 2
    assert "extends more than" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["composer.batch_size=100000000000", "explorer.max_response_tokens=900000000"])
def test_absurd_numbers_are_refused_before_a_dry_run_uses_them(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the configuration, in a line that names the key."""
    pytest.importorskip("torch", reason="for want of the extra train")
    assert main(["train", "default/divopd", "--dry-run", "--set", setting, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert setting.partition("=")[0] in said
    assert said.count("\n") == 1


# ── places that cannot be written ─────────────────────────────────────────────────────────────────────────────────

FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # no file may grow: what a full disk does
from divopd.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "words",
    [["synth", "alfworld", "--updates", "2", "--out", "turns.jsonl"], ["report", "RUN", "--out", "page.html"]],
    ids=lambda words: words[0],
)
def test_a_full_disk_is_one_line(words: list[str], tmp_path: Path) -> None:
    """Where a command writes its files."""
    from fake_runs import make_run

    run = make_run(tmp_path / "run")
    command = [sys.executable, "-c", FULL, *(str(run) if word == "RUN" else word for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=280)
    assert done.returncode == 2
    assert done.stderr.startswith("divopd: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("place", ["/proc/none/run", "/dev/null/run", "FILE/run"])
def test_a_run_that_cannot_be_made_is_one_line(place: str, tmp_path: Path) -> None:
    """No folder can be made there: an InputError, also for the library."""
    from divopd.config import Config

    (tmp_path / "file").touch()
    folder = Path(place.replace("FILE", str(tmp_path / "file")))
    with pytest.raises(InputError, match="cannot be made there"):
        begin_run(Config.model_validate({}), folder)
    assert main(["init", "--environment", "builtin", "--out", str(folder)]) == 2
