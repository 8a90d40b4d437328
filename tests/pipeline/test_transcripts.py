"""Look inside: `divopd play ENV --policy MODEL` and `divopd evaluate … --transcripts OUT` show the same rollouts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from coin_hunt import CoinHunt  # noqa: E402
from divopd.cli import main  # noqa: E402
from divopd.config import Config  # noqa: E402
from divopd.environments import Observation  # noqa: E402
from divopd.explorer import Acting, Played, PlayedTurn, Start  # noqa: E402
from divopd.models.policy import Response  # noqa: E402
from divopd.models.tiny import TinySize, build_model, build_tokenizer, save_model  # noqa: E402
from divopd.models.weights import gathered_weights  # noqa: E402
from divopd.printable import printable  # noqa: E402
from divopd.prompts import Codec, Prompt, PromptStyle, Reader  # noqa: E402
from divopd.run.checkpoints import publish_weights  # noqa: E402
from divopd.transcripts import add_transcripts, transcript_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("threads_as_before")
HUNT = f"{Path(__file__).parents[1] / 'coin_hunt.py'}:CoinHunt"
SMALL = TinySize(hidden=16, layers=1, heads=2, key_value_heads=1, feed_forward=32, context=2048)
TOKENIZER = build_tokenizer(
    [CoinHunt().reset(task).text for task in CoinHunt.tasks("train")[:20]] * 2 + ["go open"] * 9
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, build_model(TOKENIZER, seed=0, size=SMALL), TOKENIZER)
    return folder


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with versions 0 and 3, with other weights, and settings that are not the environment's."""
    folder = tmp_path_factory.mktemp("run")
    config = Config.model_validate(
        {
            "environment": {"name": HUNT, "horizon": 4, "workers": 0},
            "prompts": {"answer": "terse", "actions": "unlisted"},
            "student": {"model": str(model)},
            "explorer": {"max_response_tokens": 3},
            "evaluation": {"tasks": 5, "temperature": 1.0},
        }
    )
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    for version in (0, 3):
        weights = gathered_weights(build_model(TOKENIZER, seed=version, size=SMALL))
        publish_weights(folder / "weights", version, weights)
    return folder


def transcripts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def kept(run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The transcripts of version 3 and, in the same file, of version 0."""
    out = tmp_path_factory.mktemp("transcripts") / "rollouts.jsonl"
    assert main(["evaluate", f"{run}@3", f"{run}@0", "--transcripts", str(out)]) == 0
    return transcripts(out)


# ── transcripts ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_evaluation_keeps_every_rollout(run: Path, kept: list[dict[str, Any]]) -> None:
    """In the order of the tasks, model by model, with what was seen first as the environment says it."""
    assert [(one["version"], one["task"]) for one in kept] == [(v, str(task)) for v in (3, 0) for task in range(5)]
    assert {one["what"] for one in kept} == {f"{run}@3", f"{run}@0"}
    assert all(one["environment"] == HUNT for one in kept)
    assert [one["first"] for one in kept[:5]] == [CoinHunt().reset(str(task)).text for task in range(5)]
    assert kept[:5] != kept[5:]
    assert all(len(one["turns"]) == 4 for one in kept if not one["success"])


def test_the_actions_of_a_transcript_lead_to_what_was_seen(kept: list[dict[str, Any]]) -> None:
    """Played again, they give the same observations: nothing is left out or shifted by a turn."""
    for one in kept:
        hunt = CoinHunt()
        hunt.reset(one["task"])
        for number, turn in enumerate(one["turns"]):
            assert turn["turn"] == number
            if turn["action"] is None:
                assert (turn["valid"], turn["seen"]) == (False, "There was no action in the answer.")
                continue
            assert turn["action"] in turn["answer"]
            seen = hunt.step(turn["action"])
            assert (turn["seen"], turn["valid"], turn["reward"]) == (seen.text, seen.valid, seen.reward)


def test_transcripts_change_no_figure(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same object with and without them; the success rate is that of the file."""
    told = []
    for more in ([], ["--transcripts", str(tmp_path / "out.jsonl")]):
        assert main(["evaluate", f"{run}@3", "--json", *more]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    rollouts = transcripts(tmp_path / "out.jsonl")
    assert told[0]["success_rate"] == 100 * sum(one["success"] for one in rollouts) / len(rollouts)


def test_a_teacher_that_took_over_is_read_in_its_own_tokens() -> None:
    """Who acted is said; a failure of the environment too."""
    codec, theirs = Codec(TOKENIZER), Codec(build_tokenizer(["open the red box now"] * 2))
    style = PromptStyle(answer="terse")
    reader = Reader(style, theirs)
    acting = Acting(style, codec, 1.0, 8, 0, teacher_reader=lambda task: reader)

    def turn(actor: Any, ids: list[int], action: str) -> PlayedTurn:
        return PlayedTurn(actor, Prompt([1, 2, 3], True), Response(ids, np.zeros(len(ids))), action, Observation("x"))

    turns = (
        turn("student", codec.response_ids("go red"), "go red"),
        turn("teacher", theirs.response_ids("open the box"), "open the box"),
    )
    one = transcript_of(Played(Start(0, "7", 4), Observation("hello"), turns, "it died"), acting, kind="all")
    assert [(t["actor"], t["answer"]) for t in one["turns"]] == [("student", "go red"), ("teacher", "open the box")]
    assert (one["failure"], one["kind"], one["first"]) == ("it died", "all", "hello")
    assert (one["turns"][0]["prompt_tokens"], one["turns"][0]["prompt_truncated"]) == (3, True)


def test_half_a_letter_can_be_written(tmp_path: Path) -> None:
    """What an environment says need not be text that can be encoded; the line is JSON all the same."""
    add_transcripts(tmp_path / "out.jsonl", [{"first": "é \ud800 \n x"}])
    assert transcripts(tmp_path / "out.jsonl") == [{"first": "é \ud800 \n x"}]


def test_files_that_cannot_be_written_are_told_before_a_rollout(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and an existing file stays as it was; a model that is none leaves no file."""
    (tmp_path / "there").write_text("mine")
    wrong = {"there": "exists already", "no/such/folder.jsonl": "there is no folder"}
    for name, words in wrong.items():
        assert main(["evaluate", str(run), "--transcripts", str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1
    assert main(["evaluate", "no/model", "--transcripts", str(tmp_path / "out")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "mine"


# ── play ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def actions_shown(text: str) -> list[str | None]:
    shown = [line.partition(" > ")[2] for line in text.splitlines() if line.partition(" > ")[0].isdigit()]
    return [None if line == "(no action in the answer)" else line for line in shown]


@pytest.mark.parametrize("task", [0, 2])
def test_play_shows_the_rollout_of_the_evaluation(
    task: int, run: Path, kept: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same answers, in the run's own form and horizon; a task by its seed or by its name."""
    for version, transcript in ((3, kept[task]), (0, kept[5 + task])):
        for chosen in (["--seed", str(task)], [str(task)]):
            assert main(["play", HUNT, *chosen, "--policy", f"{run}@{version}"]) == 0
            shown = capsys.readouterr().out
            assert actions_shown(shown) == [
                turn["action"] and printable(turn["action"]) for turn in transcript["turns"]
            ]
            assert transcript["first"] in shown
            ending = "success" if transcript["success"] else "not solved"
            assert f"{ending} after {len(transcript['turns'])} of 4 turns, reward {transcript['reward']:g}" in shown


def test_with_a_task_the_seed_draws_other_answers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for seed in ("0", "1", "1"):
        assert main(["play", HUNT, "3", "--seed", seed, "--policy", str(run)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] != shown[1] == shown[2]


def test_a_model_thinks_aloud(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that says nothing about its form is asked to think; what is no action is shown as the answer it was."""
    assert main(["play", HUNT, "0", "--policy", str(model), "--set", "path=x"]) == 2  # a setting that it does not have
    capsys.readouterr()
    assert main(["play", HUNT, "0", "--policy", str(model), "--answer", "terse", "--actions", "listed"]) == 0
    shown = capsys.readouterr().out
    assert "1 > " in shown
    assert "of 30 turns" in shown


def test_who_cannot_play_is_told_in_a_line(
    run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [
        ([HUNT, "--policy", "nobody"], "expected a run"),
        ([HUNT, "--policy", f"{run}@2"], "it has 0, 3"),
        ([HUNT, "--policy", str(run), "--answer", "terse"], "says its form"),
        ([HUNT, "--policy", "random", "--answer", "terse"], "name it with --policy"),
        ([HUNT, "--policy", str(run), "--web"], "--web is for a person"),
        (["nowhere", "--policy", str(model)], "unknown environment"),
        (["alfworld-small", "nope", "--policy", str(model)], "nope"),
    ]
    for arguments, words in wrong:
        assert main(["play", *arguments]) == 2
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1
