"""`divopd init`: what it writes trains unedited, and what is wrong is one line before anything is written."""

import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

import recording_rooms  # noqa: E402
from divopd.cli import main  # noqa: E402
from divopd.config import load_config  # noqa: E402
from divopd.config.reference import config_keys  # noqa: E402
from divopd.environments import make_environment, make_expert, tasks  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.report.runs import read_run  # noqa: E402
from divopd.store import Store  # noqa: E402
from teacher_server import TeacherServer  # noqa: E402

SMALL = ("learner.updates=2", "composer.batch_size=4", "evaluation.tasks=2", "evaluation.every=2",
         "explorer.rollouts_in_flight=2", "explorer.max_response_tokens=4")  # fmt: skip
SHORT = {
    "train": tuple(word for setting in SMALL for word in ("--set", setting)),
    "report": (),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has an empty current folder and one thread."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def init(
    capsys: pytest.CaptureFixture[str], environment: str, student: object, teacher: object, *more: str
) -> list[list[str]]:
    """The three commands that are printed, in words."""
    options = ["--environment", environment, "--student", str(student), "--teacher", str(teacher)]
    assert main(["init", *options, *more]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [command[0] for command in commands] == ["divopd"] * 3
    return [command[1:] for command in commands]


def test_a_new_environment_trains(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The skeleton, the configuration and the three commands, unedited but for how much is trained."""
    commands = init(capsys, "games/mine.py:Mine", models / "student", models / "teacher", "--out", "start")
    assert sorted(map(str, Path().rglob("*.*"))) == ["games/mine.py", "start/train.yaml"]
    for command in commands:
        assert main([*command, *SHORT[command[0]]]) == 0
    with Store.open_read_only(Path("start/run")) as store:
        assert store.updates == 2
        assert {turn.task for turn in store.turns()} <= set(tasks("games/mine.py:Mine", "train"))
    assert Path("start/report.html").stat().st_size > 0


def test_models_are_made_by_the_expert(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A teacher of the student, and a student that knows the first words; then it is distilled, all in one form."""
    *lessons, train = init(capsys, "mine.py:Mine", models / "student", "expert")
    for command in lessons:
        until = command.index("--until")
        del command[until : until + 2]  # one update does not get there
        command[command.index("--updates") + 1] = "1"
        assert main([*command, "--tasks", "1", "--rollouts", "2"]) == 0
    assert main([*train, *SHORT["train"]]) == 0
    assert "was taught" not in capsys.readouterr().err
    with Store.open_read_only(Path("run")) as store:
        assert store.updates == 2
    assert load_config("train.yaml").student.model == "student"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # three minutes of a quiet core
def test_what_is_written_learns(capsys: pytest.CaptureFixture[str]) -> None:
    """The three commands, unedited: the student ends far above where it began, and stays there."""
    for command in init(capsys, "mine.py:Mine", "embedded:student", "expert"):
        assert main(command) == 0
    first, *later = read_run(Path("run")).rates
    assert min(later[-3:]) > first + 25, later  # chance alone moves a rate of 24 tasks by about 10 points


def test_a_student_that_knows_the_environment_gets_no_lessons(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does a large one: it can act by itself. Only the teacher is made."""
    known = init(capsys, "builtin", "embedded:student", "expert", "--out", "known")
    large = init(capsys, "builtin", f"owner/large@{'0' * 40}", "expert", "--out", "large")
    for commands, out in ((known, "known"), (large, "large")):
        assert [command[0] for command in commands] == ["sft", "train", "report"]
        assert f"{out}/teacher" in commands[0]
    assert load_config("known/train.yaml").student.model == "embedded:student"


def test_the_skeleton_is_an_environment_with_an_expert(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its expert solves every task within the horizon that is written."""
    init(capsys, "mine.py:Mine", models / "student", models / "teacher")
    horizon = load_config("train.yaml").environment.horizon
    assert not set(tasks("mine.py:Mine", "train")) & set(tasks("mine.py:Mine", "test"))
    for task in tasks("mine.py:Mine", "train") + tasks("mine.py:Mine", "test"):
        environment = make_environment("mine.py:Mine")
        expert = make_expert("mine.py:Mine", environment)
        observation = environment.reset(task)
        expert.reset(observation)
        for _ in range(horizon):
            observation = environment.step(expert.act(observation))
            if observation.done:
                break
        assert observation.success, task
    text = Path("mine.py").read_text(encoding="utf-8")
    assert "divopd play mine.py:Mine" in text
    assert "Skeleton" not in text


@pytest.mark.parametrize(
    ("environment", "name", "settings"),
    [
        ("builtin", "alfworld-small", {}),
        ("alfworld-large", "alfworld-large", {}),
        ("gym:key_gym:Quiet-v0", "gym", {"id": "key_gym:Quiet-v0"}),
    ],
)
def test_what_is_known_is_planned(
    environment: str,
    name: str,
    settings: dict[str, str],
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A Gymnasium id and the environments that come with divopd: the dry run, the first command, has no problem."""
    if name == "gym":
        pytest.importorskip("gymnasium", reason="for want of the extra gym")
    commands = init(capsys, environment, models / "student", models / "teacher")
    config = load_config("train.yaml")
    assert (config.environment.name, config.environment.settings) == (name, settings)
    assert list(Path().iterdir()) == [Path("train.yaml")]
    monkeypatch.setenv(recording_rooms.RUN, str(models.parent / "planned"))  # the Gymnasium room writes there
    assert main([*commands[0], "--set", "explorer.rollouts_in_flight=1"]) == 0
    assert "--dry-run" in commands[0]


def test_a_server_is_asked_for_its_model(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless its name is said; then nobody is asked."""
    server = TeacherServer(TransformersPolicy.load(models / "teacher"))
    try:
        init(capsys, "builtin", models / "student", server.url)
    finally:
        server.stop()
    teacher = load_config("train.yaml").teacher
    assert (teacher.model, teacher.url) == ("teacher", server.url)
    init(capsys, "builtin", models / "student", server.url, "--teacher-model", "mine", "--out", "other")
    assert load_config("other/train.yaml").teacher.model == "mine"


def test_sizes_follow_the_student(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny one gets large steps and bare actions, one of unknown size the paper's; a taught one its own form."""
    revision = "@" + "0" * 40
    init(capsys, "builtin", models / "student", models / "teacher", "--out", "tiny")
    init(capsys, "builtin", f"owner/large{revision}", f"owner/larger{revision}", "--out", "large")
    tiny, large = load_config("tiny/train.yaml"), load_config("large/train.yaml")
    assert (tiny.learner.lr, tiny.prompts.answer) == (3e-5, "terse")
    assert (large.learner.lr, large.prompts.answer, large.explorer.max_response_tokens) == (1e-6, "think", 512)
    init(capsys, "webshop-small", "embedded:webshop-small/student", "embedded:webshop-small/teacher", "--out", "taught")
    taught = load_config("taught/train.yaml")
    written = yaml.safe_load(Path("taught/train.yaml").read_text(encoding="utf-8"))
    assert written["prompts"]["answer"] == taught.prompts.answer == "terse"


def test_every_key_that_is_written_is_explained(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of `divopd config`."""
    init(capsys, "builtin", models / "student", models / "teacher")
    text = Path("train.yaml").read_text(encoding="utf-8")
    meanings = {key.name: key.meaning for key in config_keys()}
    for name, value in yaml.safe_load(text).items():
        for key in value if isinstance(value, dict) else [None]:
            assert f"# {meanings[f'{name}.{key}' if key else name]}" in text


def written() -> set[Path]:
    """All files and folders here but those that Python makes when it imports an environment."""
    return {file for file in Path().rglob("*") if "__pycache__" not in file.parts}


GOOD = {"environment": "builtin", "student": "embedded:student", "teacher": "embedded:teacher"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"environment": "alfworld-smal"}, "did you mean 'alfworld-small'?"),
        ({"environment": "mine.py:1st"}, "'1st' is no name of a class"),
        ({"environment": "no_such_module:Mine"}, "cannot import 'no_such_module'"),
        ({"environment": "there.py:Mine"}, "expected a class 'Mine'"),
        ({"student": "nowhere"}, "--student nowhere: no model there"),
        ({"student": "owner/name"}, "owner/name@REVISION"),
        ({"student": "embedded:nobody"}, "unknown embedded model"),
        ({"teacher": "nowhere"}, "--teacher nowhere: no model there"),
        ({"teacher": "http://127.0.0.1:9/v1"}, "127.0.0.1:9"),
        ({"environment": "gym:key_gym:Quiet-v0", "teacher": "expert"}, "brings no expert"),
        ({"environment": "bare.py:Bare", "teacher": "expert"}, "has no static method 'expert'"),
        ({"student": ""}, "--student is missing; expected"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    changed: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "gym" in str(changed):
        pytest.importorskip("gymnasium", reason="for want of the extra gym")
    Path("there.py").write_text("")
    Path("bare.py").write_text(
        "class Bare:\n"
        "    tasks = staticmethod(lambda split: ['one'])\n"
        "    def reset(self, task): ...\n"
        "    def step(self, action): ...\n"
    )
    before = written()
    wish = GOOD | changed
    assert main(["init", "--out", "made", *(word for name in wish for word in (f"--{name}", wish[name]))]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert written() == before


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.yaml").write_text("mine: 1\n")
    assert main(["init", *(word for name in GOOD for word in (f"--{name}", GOOD[name]))]) == 2
    assert "train.yaml exists; choose another --out" in capsys.readouterr().err
    assert Path("train.yaml").read_text() == "mine: 1\n"


def test_a_person_is_asked(tmp_path: Path) -> None:
    """On a terminal, for what no option said."""
    outside, inside = pty.openpty()
    os.write(outside, b"embedded:student\nembedded:teacher\n")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "divopd", "init", "--environment", "builtin"],
            stdin=inside, capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
    finally:
        os.close(outside)
        os.close(inside)
    assert "student (a model folder" in done.stdout
    assert done.stdout.rstrip().endswith("divopd report run --out report.html")
    assert load_config(tmp_path / "train.yaml").teacher.model == "embedded:teacher"
