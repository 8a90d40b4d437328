"""The table of environments, and environments that users bring."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from divopd.cli import main
from divopd.environments import ENVIRONMENTS, find_entry, kind_of, make_environment, make_expert, missing_parts, tasks
from divopd.environments.alfworld import TASK_TYPES
from divopd.environments.environment import TellsActions
from divopd.errors import InputError, UnknownNameError

ROOT = Path(__file__).parents[2]
ROOM = f"{ROOT}/examples/counting_room/counting_room.py:CountingRoom"
COMMAND = "import sys; from divopd.cli import envs; import argparse; p = argparse.ArgumentParser(); " + (
    "envs.add_arguments(p); envs.run(p.parse_args(sys.argv[1:]))"
)


def run_envs(*arguments: str, **environment: str) -> str:
    """`divopd envs` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "horizon", "split", "count"),
    [("alfworld", 30, "valid_seen", 140), ("scienceworld", 30, "held-out", 256), ("webshop", 15, "test", 128)],
)
def test_horizons_and_evaluation_of_the_paper(name: str, horizon: int, split: str, count: int) -> None:
    """Horizons and evaluation tasks are those of specification §6.1 and §8."""
    entry = ENVIRONMENTS[name]
    assert (entry.horizon, entry.evaluation_split, entry.evaluation_tasks) == (horizon, split, count)


@pytest.mark.parametrize(
    "name",
    ["alfworld-small", "alfworld-large", "scienceworld", "scienceworld-short", "webshop-small", "gym", "openenv"],
)
def test_every_split_has_its_tasks(name: str) -> None:
    """Each split of an environment that needs no data lists tasks without repeats, enough to evaluate on."""
    if "Stemmer" in missing_parts(name):
        pytest.skip("for want of the extra webshop")
    entry = ENVIRONMENTS[name]
    for split in entry.splits:
        listed = tasks(name, split)
        assert len(listed) == len(set(listed)) >= entry.evaluation_tasks
    assert set(tasks(name, "train")).isdisjoint(tasks(name, entry.evaluation_split))


def test_official_alfworld_games(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the official data, valid_seen is the paper's 140 games, and training games are shuffled, not sorted."""
    if missing_parts("alfworld"):
        pytest.skip("for want of the official data")
    train = tasks("alfworld", "train")
    assert len(tasks("alfworld", "valid_seen")) == 140
    assert len(train) == 3553
    assert train != sorted(train)


@pytest.mark.parametrize(
    ("name", "split"), [("scienceworld", "train"), ("scienceworld", "held-out"), ("alfworld-small", "train")]
)
def test_same_order_with_any_hash_seed(name: str, split: str) -> None:
    """`divopd envs --tasks` prints the same JSON lines in the same order whatever PYTHONHASHSEED is."""
    first, second = (
        run_envs("--tasks", name, "--split", split, "--json", PYTHONHASHSEED=seed) for seed in ("1", "4242")
    )
    assert first == second
    assert [json.loads(line) for line in first.splitlines()] == tasks(name, split)


def test_webshop_order_with_any_hash_seed() -> None:
    """The shop's goals too, down to their text."""
    if missing_parts("webshop-small"):
        pytest.skip("for want of the extra webshop")
    code = "from divopd.environments import *; e = make_environment('webshop-small'); print([e.reset(t).text for t in "
    code += "tasks('webshop-small', 'test')[:20]])"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "4242")
    }
    assert len(shown) == 1


def test_the_kind_of_a_task_is_the_environments_own(tmp_path: Path) -> None:
    """ALFWorld's six types also for generated games, ScienceWorld's types, WebShop's options, or what a user says."""
    assert {kind_of("alfworld-small", task) for task in tasks("alfworld-small", "test")[:6]} == set(TASK_TYPES)
    assert kind_of("scienceworld", "boil/3") == "boil"
    assert (kind_of(ROOM, "7-3"), kind_of(ROOM, "7-4")) == ("far", "near")
    if not missing_parts("alfworld"):
        named = tasks("alfworld", "valid_seen")[0]
        assert kind_of("alfworld", named) == named.split("/")[1].partition("-")[0]
    plain = tmp_path / "plain.py"
    plain.write_text("class Plain:\n    def reset(self, task): ...\n    def step(self, action): ...\n")
    assert kind_of(f"{plain}:Plain", "hard/7/x") == "hard"
    assert {kind_of(f"{plain}:Plain", task) for task in ("7-3", "7-4", "kitchen")} == {"all"}


def test_the_kind_of_a_shopping_task_is_its_number_of_options() -> None:
    """The goal's text names that many."""
    if missing_parts("webshop-small"):
        pytest.skip("for want of the extra webshop")
    environment = make_environment("webshop-small")
    for task in tasks("webshop-small", "test")[:20]:
        number = environment.reset(task).text.count(": ")
        assert kind_of("webshop-small", task) == ("1 option" if number == 1 else f"{number} options")


def test_settings_of_a_shop(tmp_path: Path) -> None:
    """Size and seed of a synthetic catalogue, product files and human goals are settings; wrong ones are told."""
    if missing_parts("webshop-small"):
        pytest.skip("for want of the extra webshop")
    few = tasks("webshop-small", "train", products=200, kinds=5)
    assert 0 < len(few) < len(tasks("webshop-small", "train"))
    shop = make_environment("webshop-small", products=200, kinds=5).shop  # pyright: ignore[reportAttributeAccessIssue]
    assert (len(shop.products), len({product.query for product in shop.products})) == (200, 5)
    for settings, message in (
        ({"products": "many"}, "products of webshop-small is 'many'; expected int"),
        ({"products": 3, "kinds": 5}, "3 products of 5 kinds is not possible"),
        ({"pages": "shrot"}, "pages of webshop-small 'shrot'; did you mean 'short'"),
        ({"goals": "human"}, "none of the 300 products has a human goal"),
        ({"catalogue": str(tmp_path / "no"), "seed": True}, "seed of webshop-small is True"),
        ({"catalogue": str(tmp_path / "no")}, "no WebShop data at"),
        ({"catalogue": str(tmp_path / "no"), "kinds": 5}, "size a synthetic catalogue"),
    ):
        with pytest.raises(InputError, match=message):
            tasks("webshop-small", "test", **settings)


def test_official_products_with_human_goals() -> None:
    """With the official files, both kinds of goals are tasks of the same shop."""
    if missing_parts("webshop"):
        pytest.skip("for want of the official data")
    human = make_environment("webshop", goals="human").reset(tasks("webshop", "test", goals="human")[0])
    assert human.text != make_environment("webshop").reset("goal-00000").text


def test_what_is_missing_is_told_with_its_command(tmp_path: Path) -> None:
    """Without java and data, `divopd envs` says so and how to get them; the native environments stay ready."""
    shown = run_envs(PATH=str(tmp_path), JAVA_HOME=str(tmp_path), DIVOPD_DATA="", ALFWORLD_DATA="", COLUMNS="200")
    assert "missing: java" in shown.replace("missing: scienceworld, java", "missing: java")
    assert "openjdk" in shown
    assert "missing: official games" in shown
    assert "alfworld-download" in shown
    ready = [json.loads(line) for line in run_envs("--json").splitlines()]
    assert {line["environment"] for line in ready} == set(ENVIRONMENTS)
    assert next(line for line in ready if line["environment"] == "alfworld-small")["missing"] == []


def test_what_to_install_can_be_installed_from_a_clone() -> None:
    """The package is on no registry: every hint names an extra of this repository, to be installed in its folder."""
    extras = metadata("divopd").get_all("Provides-Extra") or []
    for entry in ENVIRONMENTS.values():
        assert set(re.findall(r"pip install (.*?\])", entry.install)) <= {f"-e '.[{extra}]" for extra in extras}
        assert ("pip install" in entry.install) == (entry.install != "nothing to install")
        assert "divopd[" not in entry.install


def test_unknown_names_are_errors() -> None:
    """A wrong environment, split or setting is named with the nearest right one."""
    with pytest.raises(UnknownNameError, match="did you mean 'scienceworld'"):
        make_environment("sciencewolrd")
    with pytest.raises(UnknownNameError, match="held-out"):
        tasks("scienceworld", "test")
    with pytest.raises(UnknownNameError, match="did you mean 'simplifications'"):
        make_environment("scienceworld", simplification="easy")


@pytest.mark.parametrize("name", ["alfworld", "webshop"])
def test_missing_data_is_an_error_that_says_where_it_goes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without official data the error names the variable to set and what needs no data."""
    if "Stemmer" in missing_parts(name):
        pytest.skip("for want of the extra webshop")
    from divopd.environments import sources

    monkeypatch.delenv("DIVOPD_DATA", raising=False)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    for shared in (sources._games, sources._shop):
        shared.cache_clear()
    with pytest.raises(InputError, match="DIVOPD_DATA"):
        make_environment(name)


@pytest.mark.parametrize("name", ["alfworld-small", "webshop-small", ROOM])
@pytest.mark.parametrize("action", ["x" * 100_000, "\ud800", "\x1b[2J", "<|im_end|>", ""])
def test_bad_actions_are_invalid(name: str, action: str) -> None:
    """An action of 100 kB, broken Unicode, escapes and chat markers are invalid actions; the rollout goes on."""
    if missing_parts(name):
        pytest.skip("for want of the extra webshop")
    environment = make_environment(name)
    environment.reset(tasks(name, "test")[0])
    observation = environment.step(action)
    assert not observation.valid
    assert not observation.done


@pytest.mark.parametrize("name", ["alfworld-small", "webshop-small", ROOM])
def test_experts_solve_evaluation_tasks(name: str) -> None:
    """The expert of each environment solves the first tasks, acting on what it sees, within the horizon."""
    if missing_parts(name):
        pytest.skip("for want of the extra webshop")
    environment = make_environment(name)
    expert = make_expert(name, environment)
    solved = 0
    for task in tasks(name, "test")[:10]:
        observation = environment.reset(task)
        expert.reset(observation)
        for _ in range(find_entry(name).horizon):
            observation = environment.step(expert.act(observation))
            if observation.done:
                break
        solved += observation.success
    assert solved >= 9


# ── a user's own ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_example_is_short_and_complete() -> None:
    """The example class fits forty lines, lists tasks for both splits, and none is in both."""
    source = (ROOT / "examples/counting_room/counting_room.py").read_text(encoding="utf-8")
    body = source.split("class CountingRoom")[1].split("class Walker")[0]
    assert len(body.strip().splitlines()) <= 40
    assert set(tasks(ROOM, "train")).isdisjoint(tasks(ROOM, "test"))
    assert (len(tasks(ROOM, "train")), len(tasks(ROOM, "test"))) == (60, 30)


@pytest.mark.parametrize("name", ["nowhere.py:Room", "no.such.module:Room", "json:nothing", "json:JSONDecoder"])
def test_own_environment_that_is_none(name: str) -> None:
    """A file, module or class that is not there, or has no reset and step, is an InputError."""
    with pytest.raises(InputError, match="environment"):
        make_environment(name)


def test_own_environment_without_tasks(tmp_path: Path) -> None:
    """A class without `tasks` can be played by task name, but not listed."""
    file = tmp_path / "bare.py"
    file.write_text("class Bare:\n    def reset(self, task): ...\n    def step(self, action): ...\n")
    make_environment(f"{file}:Bare")
    with pytest.raises(InputError, match="static method 'tasks'"):
        tasks(f"{file}:Bare", "train")


WRONG_ANSWERS = {
    "a dict": ("{'text': 'You are here.'}", "returned a dict", "expected an Observation"),
    "nothing": ("None", "returned NoneType", "expected an Observation"),
    "gym's pair": ("('You are here.', {})", "returned a tuple", "expected an Observation"),
    "no text": ("Observation(None)", "text is None", "expected a string"),
    "an action for a list": ("Observation('x', 'go')", "allowed_actions is 'go'", "expected a list of strings or None"),
    "numbers as actions": ("Observation('x', [1, 2])", "allowed_actions is [1, 2]", "expected a list of strings or"),
    "a word for done": ("Observation('x', done='no')", "done is 'no'", "expected True or False"),
    "a word as reward": ("Observation('x', reward='1')", "reward is '1'", "expected a number"),
}


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
def test_an_answer_that_is_no_observation_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, method: str
) -> None:
    """It names the class, the method, what came and what was expected; there is no traceback."""
    answer, *words = WRONG_ANSWERS[wrong]
    answers = {"reset": "Observation('Go on.', ['go'])", "step": "Observation('Done.', done=True)"} | {method: answer}
    (tmp_path / "hut.py").write_text(
        "from divopd.environments import Observation\n"
        "class Hut:\n"
        f"    def reset(self, task): return {answers['reset']}\n"
        f"    def step(self, action): return {answers['step']}\n"
    )
    assert main(["play", f"{tmp_path / 'hut.py'}:Hut", "any", "--policy", "random"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("divopd: ")
    assert told.count("\n") == 1
    assert all(word in told for word in (f"Hut.{method}", *words)), told


def test_answers_of_numpy_and_tuples_are_taken(tmp_path: Path) -> None:
    """What already means the same is no error, and the rest of an environment can still be reached."""
    (tmp_path / "numeric.py").write_text(
        "import numpy as np\n"
        "from divopd.environments import Observation\n"
        "class Numeric:\n"
        "    colour = 'red'\n"
        "    def reset(self, task): return Observation('x', ('a', 'b'), reward=np.float32(0.5))\n"
        "    def step(self, action): return Observation('x', None, done=np.bool_(True), success=True, reward=1)\n"
    )
    environment = make_environment(f"{tmp_path / 'numeric.py'}:Numeric")
    assert environment.reset("any").text == "x"
    assert environment.step("a").done
    assert environment.colour == "red"  # type: ignore[attr-defined]
    assert not hasattr(environment, "close")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", None),
        ("    def valid_actions(self): return ['go']\n", ["go"]),
        ("    valid_actions = lambda self: None\n", None),
    ],
)
def test_an_own_environment_may_tell_what_is_allowed(tmp_path: Path, body: str, told: list[str] | None) -> None:
    """By a method that it need not have; None: it does not tell."""
    (tmp_path / "telling.py").write_text(f"class Telling:\n    def reset(self, task): ...\n    step = reset\n{body}")
    environment = make_environment(f"{tmp_path / 'telling.py'}:Telling")
    assert isinstance(environment, TellsActions)
    assert environment.valid_actions() == told


def test_what_is_allowed_is_a_list_of_strings(tmp_path: Path) -> None:
    """A wrong answer is one line that names class and method."""
    body = "class Odd:\n    def reset(self, task): ...\n    step = reset\n    def valid_actions(self): return 'go'\n"
    (tmp_path / "odd.py").write_text(body)
    environment = make_environment(f"{tmp_path / 'odd.py'}:Odd")
    assert isinstance(environment, TellsActions)
    with pytest.raises(InputError, match=r"Odd\.valid_actions returned 'go'; expected a list of strings or None"):
        environment.valid_actions()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("[0, 1]", r"has 0 in it; expected a list of strings"),
        ("[b'a']", r"has b'a' in it; expected a list of strings"),
        (r"['ok', 'a\ud800b']", r"has 'a\\ud800b' in it, with half a surrogate pair"),
        ("['x' * 50_000_000]", r"has a name of 50,000,000 characters in it, 'x{40}'…; expected at most 10,000$"),
        ("iter(int, 1)", r"has more than 1,000,000 names; expected fewer$"),
        ("__import__('sys').exit(0)", r"called sys\.exit\(0\)$"),
        ("1 / 0", r"raised ZeroDivisionError"),
    ],
)
def test_what_is_no_list_of_tasks_is_refused(tmp_path: Path, body: str, told: str) -> None:
    """Before one of them is played, in one line, and whatever would be without end is bounded."""
    code = f"class Odd:\n    reset = step = print\n    @staticmethod\n    def tasks(split): return {body}\n"
    (tmp_path / "odd.py").write_text(code, encoding="utf-8")
    with pytest.raises(InputError, match=rf"tasks\('train'\) {told}") as refused:
        tasks(f"{tmp_path / 'odd.py'}:Odd", "train")
    assert len(str(refused.value)) < 1000
