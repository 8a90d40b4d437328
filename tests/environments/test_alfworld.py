"""The native ALFWorld: the engine against recorded transcripts of the package, games from files, and hostile input."""

import json
import lzma
import random
from pathlib import Path

import pytest

import alfworld_golden
from divopd.environments.alfworld import (
    HORIZON,
    AlfworldEnvironment,
    OfficialGames,
    PackageEnvironment,
    find_official_games,
    open_games,
)
from divopd.environments.alfworld.problem import read_problem
from divopd.errors import InputError, MissingExtraError, UnknownNameError

TASK = "small/train/00000"


def test_engine_repeats_the_transcripts_of_the_package() -> None:
    """Every text, every list of allowed actions and every outcome equals what the real package gave."""
    compared = 0
    for game, [(_, start), *done] in alfworld_golden.read():
        environment = AlfworldEnvironment(alfworld_golden.OneGame(game))
        assert not alfworld_golden.differences(environment.reset(game.id), start), game.id
        for action, theirs in done:
            assert not alfworld_golden.differences(environment.step(action), theirs), (game.id, action)
            compared += 1
    assert compared > 1000


def test_every_allowed_action_is_understood_and_nothing_else() -> None:
    """In random play each listed action is valid; what is not listed is answered with nothing and changes nothing."""
    games, rng = open_games("large"), random.Random(0)
    environment = AlfworldEnvironment(games)
    for task in games.tasks("test")[:20]:
        observation = environment.reset(task)
        for _ in range(HORIZON):
            refused = environment.step("go to the moon 1")
            assert (refused.valid, refused.text) == (False, "Nothing happens.")
            assert refused.allowed_actions == observation.allowed_actions == sorted(observation.allowed_actions or [])
            observation = environment.step(rng.choice(observation.allowed_actions or []))
            assert observation.valid


@pytest.mark.parametrize(
    "action", ["x" * 100_000, "\x1b[2J\x1b]0;owned\x07", "", "\0", "<|im_start|>system", "look\nlook"]
)
def test_hostile_actions_are_harmless(action: str) -> None:
    """Huge or strange actions change nothing, and no part of them comes back in an observation."""
    environment = AlfworldEnvironment(open_games("small"))
    before = environment.reset(TASK)
    after = environment.step(action)
    assert (after.text, after.valid, after.allowed_actions) == ("Nothing happens.", False, before.allowed_actions)


def test_winning_ends_the_rollout_with_reward_one() -> None:
    """Reward, done and success come together, at the action that reaches the goal and not before."""
    games = open_games("small")
    environment = AlfworldEnvironment(games)
    seen = [environment.reset(TASK)] + [environment.step(action) for action in games.game(TASK).walkthrough]
    assert [(o.done, o.success, o.reward) for o in seen] == [(False, False, 0.0)] * (len(seen) - 1) + [
        (True, True, 1.0)
    ]


def test_acting_before_a_reset_is_an_error() -> None:
    """An action without a game says what to do instead of failing somewhere inside."""
    with pytest.raises(InputError, match="reset"):
        AlfworldEnvironment(open_games("small")).step("look")


@pytest.mark.parametrize(
    "task", ["small/train/99999", "small/dev/00000", "large/train/00000", "nonsense", "a" * 100_000]
)
def test_unknown_generated_task_says_what_is_known(task: str) -> None:
    """A wrong task name is a short error that names the tasks that there are."""
    with pytest.raises(InputError, match="small/train/00000 to 09999") as caught:
        open_games("small").game(task)
    assert len(str(caught.value)) < 500


def test_unknown_collections_and_splits_are_named() -> None:
    """A misspelt collection or split is answered with the names that there are."""
    with pytest.raises(UnknownNameError, match="did you mean 'small'"):
        open_games("smal")
    with pytest.raises(UnknownNameError, match="did you mean 'train'"):
        open_games("small").tasks("trian")


def test_missing_data_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without official games the error names the variables to set and the way around."""
    monkeypatch.delenv("DIVOPD_DATA", raising=False)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"DIVOPD_DATA.*ALFWORLD_DATA.*generated"):
        open_games("official")
    with pytest.raises(InputError, match="DIVOPD_DATA"):
        OfficialGames(tmp_path / "absent")
    with pytest.raises(InputError, match="no ALFWorld games of the split valid_seen"):
        OfficialGames(tmp_path).tasks("valid_seen")
    with pytest.raises(UnknownNameError, match="valid_seen"):
        OfficialGames(tmp_path).tasks("valid_sen")


def write_lines(folder: Path, name: str, *, number: int) -> list[str]:
    """A file of generated games in the layout of official ones; the names of the tasks."""
    games = [open_games("small").game(f"small/train/{i:05d}") for i in range(number)]
    records = [
        {"id": f"valid_seen/{i}", "task": game.task, "problem": game.problem, "walkthrough": game.walkthrough}
        for i, game in enumerate(games)
    ]
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    (folder / name).write_bytes(lzma.compress(content) if name.endswith(".xz") else content)
    return [str(record["id"]) for record in records]


@pytest.mark.parametrize("name", ["alfworld_valid_seen.jsonl", "alfworld_valid_seen.jsonl.xz"])
def test_games_are_read_from_json_lines_in_their_order(tmp_path: Path, name: str) -> None:
    """Plain or compressed, the tasks are those of the file, in its order, and can be played."""
    names = write_lines(tmp_path, name, number=12)
    games = OfficialGames(tmp_path)
    assert games.tasks("valid_seen") == names
    environment = AlfworldEnvironment(games)
    environment.reset(names[3])
    assert [environment.step(action).success for action in games.game(names[3]).walkthrough][-1]
    with pytest.raises(InputError, match="expected one of 12"):
        games.game("valid_seen/absent")


def test_games_are_read_from_the_folder_of_the_package(tmp_path: Path) -> None:
    """Solvable games only, sorted by path, with the task out of the grammar; sliced and movable ones are left out."""
    game = open_games("small").game(TASK)
    names = ("b-Mug/trial_2", "a-Mug/trial_1", "a-MugSliced/trial_1", "pick_two_movable/trial_1", "z-Mug/unsolvable")
    for name in names:
        folder = tmp_path / "json_2.1.1" / "train" / name
        folder.mkdir(parents=True)
        grammar = '{"task": [{"rhs": "Your task is to: put a mug in cabinet."}]}'
        data = {"pddl_problem": game.problem, "grammar": grammar, "solvable": "unsolvable" not in name}
        (folder / "game.tw-pddl").write_text(json.dumps(data))
    games = OfficialGames(tmp_path)
    assert games.tasks("train") == ["train/a-Mug/trial_1", "train/b-Mug/trial_2"]
    assert games.game("train/a-Mug/trial_1").task == "put a mug in cabinet"


@pytest.mark.parametrize(
    "damage", [b"{", b"\xff\xfe", b"[" * 200_000, b'{"id": 1}', b"[]", b'{"id": "a", "task": "b"}']
)
def test_damaged_files_are_named(tmp_path: Path, damage: bytes) -> None:
    """A damaged file is one clear error with its path."""
    (tmp_path / "alfworld_train.jsonl").write_bytes(damage)
    with pytest.raises(InputError, match=r"alfworld_train\.jsonl"):
        OfficialGames(tmp_path).tasks("train")
    compressed = lzma.compress(b"x" * 10_000)
    (tmp_path / "alfworld_valid_seen.jsonl.xz").write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(InputError, match="damaged"):
        OfficialGames(tmp_path).tasks("valid_seen")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("(:goal", "(:aim", "needs"),
        ("(exists (?o - object)", "(forall (?o - object)", "six task types"),
        ("(atlocation agent1", "(holds agent1", "cannot start"),
        ("(atlocation agent1 loc_bar_00)", "", "one agent"),
        ("(objecttype book_bar_00 booktype)", "", "book_bar_00"),
        (
            "(objecttype book_bar_00 booktype)",
            "(objecttype book_bar_00 booktype) (objecttype book_bar_00 mugtype)",
            "one",
        ),
    ],
)
def test_a_problem_that_is_no_game_says_why(old: str, new: str, says: str) -> None:
    """Problems that the engine does not play are refused with the reason, never played wrongly."""
    problem = open_games("small").game(TASK).problem
    assert old in problem
    with pytest.raises(InputError, match=says):
        read_problem(problem.replace(old, new))


def test_official_splits_have_the_papers_sizes_and_can_be_won() -> None:
    """140 games to test on, 134 unseen, 3,553 to train on; each walkthrough of the first two wins in our engine."""
    games = find_official_games()
    if games is None:
        pytest.skip("for want of the official data")
    assert [len(games.tasks(split)) for split in ("valid_seen", "valid_unseen", "train")] == [140, 134, 3553]
    environment = AlfworldEnvironment(games)
    for task in games.tasks("valid_seen") + games.tasks("valid_unseen"):
        assert not environment.reset(task).success
        assert [environment.step(action).success for action in games.game(task).walkthrough][-1], task


def test_package_that_is_not_installed_is_named() -> None:
    """Without the package, the adapter says which extra brings it."""
    try:
        import alfworld  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"\.\[alfworld\]"):
            PackageEnvironment(open_games("small"))
    else:
        pytest.skip("the alfworld package is installed")
