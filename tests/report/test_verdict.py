"""`divopd replay … --verdict`: what composition would change in a recording, counted again by hand, and its worth."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from divopd.cli import main
from divopd.experiments.evidence import read_evidence
from divopd.methods import make_composer
from divopd.replay import load_recording
from divopd.report.comparison import compare
from divopd.report.verdict import Verdict, judge, verdict_lines

BATCH = 16


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "turns.jsonl"
    assert main(["synth", "alfworld", "--out", str(path), "--updates", "10"]) == 0
    return path


def verdict_of(recording: Path, *methods: str, batch: int = BATCH, evidence: dict[str, Any] | None = None) -> Verdict:
    loaded = load_recording(recording)
    composers = {name: make_composer(name, batch_size=batch) for name in ("vanilla", *(methods or ("divopd",)))}
    comparison = compare(loaded, composers, updates=loaded.updates)
    verdict = judge(loaded, comparison, batch_size=batch, evidence=evidence or {})
    assert verdict is not None
    return verdict


def selected(recording: Path, method: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    """The rows of all batches, as `divopd replay --json` tells them."""
    capsys.readouterr()
    assert main(["replay", str(recording), "--method", method, "--batch-size", str(BATCH), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(rollout, turn) for line in lines for rollout, turn in line["selected"]]


def test_every_figure_is_counted_on_the_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Load, lengths, dead rows, never used and other turns: from the file and the selected rows alone."""
    turns = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()]
    valid = {(t["rollout"], t["turn"]) for t in turns if any(t["action_mask"]) and not t.get("prompt_truncated")}
    rows = {name: selected(recording, name, capsys) for name in ("vanilla", "divopd")}
    assert main(["replay", str(recording), "--verdict", "--json", "--batch-size", str(BATCH)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["turns"], told["updates"]) == (len(turns), 10)
    assert told["load"] == len(valid) / (10 * BATCH)
    assert told["rollouts"] == len({rollout for rollout, _ in valid})
    lengths = sorted(Counter(t["rollout"] for t in turns).values())
    tenth = round(len(lengths) / 10)
    assert told["lengths"]["short"] == lengths[tenth - 1] < told["lengths"]["long"] == lengths[-tenth]
    assert told["lengths"]["share_of_long"] == sum(lengths[-tenth:]) / len(turns)
    trained = {name: set(own) & valid for name, own in rows.items()}
    for name, own in rows.items():
        use = told["use"][name]
        used = {rollout for rollout, _ in trained[name]}
        assert use["dead_rows"] == sum(row not in valid for row in own) / len(own)
        assert use["never_used"] == pytest.approx(1 - len(used) / told["rollouts"])
        assert use["other_turns"] == len(trained[name] - trained["vanilla"]) / len(trained[name])
    assert list(told["use"]) == ["vanilla", "divopd"]
    assert told["use"]["vanilla"]["dead_rows"] > 0


def test_an_overfull_queue_is_changed_much(recording: Path) -> None:
    """More arrives than is trained, and the two train different turns."""
    verdict = verdict_of(recording)
    assert verdict.load > 2
    assert verdict.change == {"divopd": "much"}
    text = "\n".join(verdict_lines(verdict))
    assert "so a composer chooses" in text
    assert "divopd would change much: " in text
    assert "points fewer of the rollouts go unused" in text


def test_where_every_turn_finds_a_slot_composition_changes_next_to_nothing(recording: Path) -> None:
    """With batches that hold all, gated methods train the same turns, whatever their order; dead rows are little."""
    verdict = verdict_of(recording, "divopd", "vanilla-wide", batch=2048)
    assert verdict.load < 1
    assert verdict.use["divopd"].other_turns == verdict.use["vanilla-wide"].other_turns == 0
    assert verdict.change == {"divopd": "little", "vanilla-wide": "nothing"}
    text = "\n".join(verdict_lines(verdict))
    assert "little to choose" in text
    assert "vanilla-wide would train nearly the same turns as vanilla: composition changes next to nothing here" in text


def area(mean: float, low: float, high: float) -> dict[str, Any]:
    return {"nauc": {"mean": mean, "low": low, "high": high, "seeds": 32}}


def test_the_evidence_is_told_as_it_is(recording: Path) -> None:
    """A gain, a loss, or what cannot be told from none, by setting; arms that are not asked for are left out."""
    evidence = {
        "default": {"divopd": area(1.25, 0.4, 2.1), "top-b": area(9, 8, 10)},
        "other": {"divopd": area(-2, -3, -1)},
        "third": {"divopd": area(0.5, -1, 2)},
        "fourth": {"top-b": area(9, 8, 10)},
    }
    lines = verdict_lines(verdict_of(recording, evidence=evidence))
    told = [line.removeprefix("evidence").strip() for line in lines if line.startswith("evidence")]
    assert told == [
        "default, 32 seeds: divopd − vanilla is +1.2 points of nAUC (95 %: +0.4 to +2.1), a gain there",
        "other, 32 seeds: divopd − vanilla is -2.0 points of nAUC (95 %: -3.0 to -1.0), a loss there",
        "third, 32 seeds: divopd − vanilla is +0.5 points of nAUC (95 %: -1.0 to +2.0), not told apart from no "
        "difference",
    ]
    for nothing in ({}, {"fourth": evidence["fourth"]}):
        text = "\n".join(verdict_lines(verdict_of(recording, evidence=nothing)))
        assert "no evidence yet about what divopd is worth compared with vanilla" in text
        assert "points of nAUC" not in text


def test_the_command_tells_what_is_shipped(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A heading, the lines in their order, and in the end what nobody can tell from a recording."""
    assert main(["replay", str(recording), "--verdict"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith(f"{recording}: ")
    shipped = [setting for setting, arms in read_evidence().items() if "divopd" in arms]
    assert [line.split()[0] for line in lines] == [
        "load",
        "lengths",
        "vanilla",
        "divopd",
        "change",
        *["evidence"] * max(1, len(shipped)),
        "unknown",
    ]
    assert ("no evidence yet" in "\n".join(lines)) == (not shipped)
    assert "cannot tell what would have been learned" in lines[-1]


def test_what_cannot_be_judged_is_one_line(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead = tmp_path / "dead.jsonl"
    turns = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()[:5]]
    lines = [json.dumps(turn | {"action_mask": [0] * len(turn["action_mask"])}) for turn in turns]
    dead.write_text("\n".join(lines) + "\n", encoding="utf-8")
    wrong = [
        ([str(recording), "--verdict", "--method", "vanilla"], "name another one"),
        ([str(recording), "--verdict", "--out", str(tmp_path / "run")], "a command of its own"),
        ([str(recording), "--verdict", "--figure", str(tmp_path / "x.png")], "a command of its own"),
        ([str(recording), "--verdict", "--method", "divop"], "did you mean"),
        ([str(dead), "--verdict"], "none of its 5 turns can be trained"),
    ]
    capsys.readouterr()
    for arguments, words in wrong:
        assert main(["replay", *arguments]) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert told.err.count("\n") == 1
        assert told.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["dead.jsonl"]
