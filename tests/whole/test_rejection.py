"""`divopd sft --from-teacher`: a teacher's successes, and nothing else, become a student's lessons."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from coin_hunt import CoinHunt  # noqa: E402
from divopd.bootstrap.rejection import (  # noqa: E402
    Collected,
    Sampling,
    collect_successes,
    lesson_of,
    told_again,
)
from divopd.cli import main  # noqa: E402
from divopd.errors import InputError  # noqa: E402
from divopd.explorer import Acting, Played  # noqa: E402
from divopd.models.model_files import load_tokenizer, model_folder  # noqa: E402
from divopd.models.policy import Response  # noqa: E402
from divopd.models.taught import Taught, read_taught  # noqa: E402
from divopd.models.tiny import build_tokenizer  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.prompts import Codec, PromptStyle  # noqa: E402
from divopd.store import Store  # noqa: E402
from teacher_server import TeacherServer  # noqa: E402

pytestmark = pytest.mark.usefixtures("threads_as_before")
TESTS = Path(__file__).parents[1]
HUNT = f"{TESTS / 'coin_hunt.py'}:CoinHunt"
HOUSE = f"{TESTS / 'own_house.py'}:OwnHouse"
STYLE = PromptStyle(system="Find the coin.", answer="think", actions="listed")
WORDS = [CoinHunt().reset(task).text for task in CoinHunt.tasks("train")] * 2 + [
    "go open You are at the Nothing happens"
]
TOKENIZER = build_tokenizer(WORDS)
THOUGHT = "<think>the box</think>"


class Wavering:
    """A teacher that thinks aloud and knows where the coin is; by the task it mumbles first, or walks in circles."""

    def __init__(self, codec: Codec) -> None:
        self.codec, self.told = codec, list[str]()

    def respond(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, max_tokens: int, seeds: Sequence[int]
    ) -> list[Response]:
        answers = [self._answer(str(TOKENIZER.decode(list(prompt)))) for prompt in prompts]
        return [Response(ids[:max_tokens], np.zeros(min(len(ids), max_tokens))) for ids in answers]

    def score(self, sequences: object, spans: object) -> list[list[np.ndarray]]:
        raise AssertionError("nothing is scored")

    def _answer(self, prompt: str) -> list[int]:
        goal = prompt.split("in the ")[1].split(" box")[0]
        said = prompt.count(THOUGHT)
        mood = random.Random(prompt.split("Boxes")[1].split(".")[0] + goal).randrange(3)
        if mood == 0:
            action = "go red"  # for ever
        elif mood == 1 and said == 0:
            return self.codec.response_ids(f"{THOUGHT} hm")  # no action
        elif mood == 1 and said == 1:
            action = "fly away"  # not understood
        else:
            action = f"open {goal}" if f"You are at the {goal} box" in prompt else f"go {goal}"
        return self.codec.response_ids(f"{THOUGHT}<action>{action}</action>")


def acting(codec: Codec, *, seed: int = 0) -> Acting:
    return Acting(STYLE, codec, temperature=1.0, max_response_tokens=200, seed=seed)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(TOKENIZER)


@pytest.fixture(scope="module")
def collected(codec: Codec) -> Collected:
    return collect_successes(Wavering(codec), HUNT, acting(codec), Sampling(wanted=10, attempts=200))


def test_successes_alone_are_kept(collected: Collected, codec: Codec) -> None:
    """In the order of the tasks, of a run that stops at enough; the same seed gives the same, another other tasks."""
    assert all(rollout.success for rollout in collected.rollouts)
    assert 10 <= len(collected.rollouts) < collected.played < 200
    numbers = [rollout.start.number for rollout in collected.rollouts]
    assert numbers == sorted(numbers)
    again, other = (
        collect_successes(Wavering(codec), HUNT, acting(codec, seed=seed), Sampling(wanted=10, attempts=200))
        for seed in (0, 1)
    )
    names = [[rollout.start.task for rollout in one.rollouts] for one in (collected, again, other)]
    assert names[0] == names[1] != names[2]
    assert set(names[0]) <= set(CoinHunt.tasks("train"))


def test_what_was_under_way_is_played_to_its_end(codec: Codec) -> None:
    """Else only the shortest successes would be kept: no start is taken after enough, none is thrown away."""
    one = collect_successes(Wavering(codec), HUNT, acting(codec), Sampling(wanted=1, attempts=200))
    assert one.played == 16
    assert {len(rollout.turns) for rollout in one.rollouts} == {2, 4}


def test_a_lesson_is_what_was_understood_as_the_student_reads_it(collected: Collected, codec: Codec) -> None:
    """The answers with their thoughts, each after its own prompt; mumbling and nonsense are read, not learned."""
    longest = max(collected.rollouts, key=lambda rollout: len(rollout.turns))
    assert len(longest.turns) == 4
    example = lesson_of(longest, STYLE, codec, teacher_stop=codec.stop)
    good = longest.turns[2:]
    assert example.targets.tolist() == [id_ for turn in good for id_ in turn.response.ids]
    starts = [
        start for turn in good for start in range(len(turn.prompt.ids), len(turn.prompt.ids) + len(turn.response.ids))
    ]
    assert example.positions.tolist() == starts
    assert example.ids.tolist() == [*good[-1].prompt.ids, *good[-1].response.ids]
    assert THOUGHT in codec.decode(example.targets.tolist())
    assert not set(example.read.tolist()) & set(starts)


def test_an_answer_that_was_cut_off_is_no_lesson(collected: Collected, codec: Codec) -> None:
    """It does not end with the stop token: a student must not learn to go on for ever."""
    rollout = collected.rollouts[0]
    first = rollout.turns[-2]
    cut = replace(first, response=Response(first.response.ids[:-1], first.response.logprobs[:-1]))
    shorter = Played(rollout.start, rollout.first, (*rollout.turns[:-2], cut, rollout.turns[-1]))
    example = lesson_of(shorter, STYLE, codec, teacher_stop=codec.stop)
    assert example.targets.tolist() == rollout.turns[-1].response.ids


def test_a_student_ends_its_answers_as_its_own_template_does(collected: Collected, codec: Codec) -> None:
    """A teacher with another stop token is read all the same."""
    theirs, rollout = 2, collected.rollouts[0]
    assert theirs != codec.stop
    turns = [replace(t, response=replace(t.response, ids=[*t.response.ids[:-1], theirs])) for t in rollout.turns]
    example = lesson_of(replace(rollout, turns=tuple(turns)), STYLE, codec, teacher_stop=theirs)
    own = lesson_of(rollout, STYLE, codec, teacher_stop=codec.stop)
    assert example.ids.tolist() == own.ids.tolist()
    assert example.targets.tolist() == own.targets.tolist()


def test_lessons_are_told_again_in_another_order(collected: Collected, codec: Codec) -> None:
    examples = [lesson_of(rollout, STYLE, codec, teacher_stop=codec.stop) for rollout in collected.rollouts]
    stream = told_again(examples, seed=0)
    rounds = [[id(next(stream)) for _ in examples] for _ in range(2)]
    assert sorted(rounds[0]) == sorted(rounds[1]) == sorted(map(id, examples))
    assert rounds[0] != rounds[1]


def test_a_teacher_that_never_succeeds_is_refused(codec: Codec) -> None:
    """Nothing is learned from failures; the message says what was tried and what to do."""

    class Lost(Wavering):
        def _answer(self, prompt: str) -> list[int]:
            return self.codec.response_ids(f"{THOUGHT}<action>go red</action>")

    with pytest.raises(InputError, match=r"none of the teacher's 3 rollouts .* succeeded; .*divopd play"):
        collect_successes(Lost(codec), HUNT, acting(codec), Sampling(wanted=1, attempts=3))
    fallen = f"{TESTS / 'coin_hunt.py'}:FallenHunt"
    with pytest.raises(InputError, match="the ground gave way"):
        collect_successes(Lost(codec), fallen, acting(codec), Sampling(wanted=1, attempts=2))


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────

BRIEF = ["--demonstrations", "1", "--attempts", "3", "--updates", "2", "--rollouts", "2", "--tasks", "1"]
BRIEF += ["--response-tokens", "8"]


def test_from_an_environment_without_an_expert_to_distillation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedded teacher shows how; a new student with its tokenizer learns that and is then distilled."""
    student, run = tmp_path / "student", tmp_path / "run"
    assert main(["sft", HOUSE, "--out", str(student), "--from-teacher", "embedded:teacher", *BRIEF]) == 0
    assert " of 3 rollouts in " in capsys.readouterr().err
    assert read_taught(student) == Taught(HOUSE, "terse", "unlisted")
    assert load_tokenizer(student).get_vocab() == load_tokenizer(model_folder("embedded:teacher")).get_vocab()
    config = tmp_path / "mine.yaml"
    config.write_text(
        f"environment: {{name: '{HOUSE}', horizon: 3}}\nstudent: {{model: {student}}}\n"
        "teacher: {model: 'embedded:teacher'}\nexplorer: {max_response_tokens: 8, rollouts_in_flight: 2}\n"
        "learner: {updates: 1}\ncomposer: {batch_size: 2}\nevaluation: {tasks: 1}\n"
        "prompts: {max_prompt_tokens: 2048}\n",
        encoding="utf-8",
    )
    assert main(["train", str(config), "--out", str(run)]) == 0
    assert f"{student} was taught" not in capsys.readouterr().err
    with Store.open_read_only(run) as store:
        assert store.updates == 1


@pytest.mark.slow
def test_a_teacher_behind_a_url_teaches_what_it_would_from_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rollouts and the same weights in the end; the form of answers is that of the student."""
    server = TeacherServer(TransformersPolicy.load(model_folder("embedded:teacher")))
    weights = []
    try:
        for teacher in ("embedded:teacher", server.url):
            out = tmp_path / str(len(weights))
            options = ["--from", "embedded:student", "--from-teacher", teacher, "--demonstrations", "1"]
            options += ["--attempts", "2", "--updates", "1", "--rollouts", "1", "--tasks", "1"]
            assert main(["sft", HOUSE, "--out", str(out), *options]) == 0
            assert read_taught(out) == Taught(HOUSE, "terse", "unlisted")
            weights.append(TransformersPolicy.load(out).weights())
    finally:
        server.stop()
    assert len(server.requests) > 2
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_wrong_wishes_are_one_line_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher, out = ["--from-teacher", "embedded:teacher"], tmp_path / "out"
    wrong = [
        ([*teacher, "--labels", "weak", "--from", "embedded:student"], "either --labels weak or"),
        (["--teacher-model", "x"], "give the server"),
        ([*teacher, "--demonstrations", "0"], "expected 1 or more"),
        ([*teacher, "--updates", "0"], "expected 1 or more"),
        ([*teacher, "--temperature", "nan"], "expected 0 or more"),
        ([*teacher, "--learning-rate", "0"], "expected more than 0"),
        (["--from-teacher", "no/such"], "no model there"),
        (["--from-teacher", "http://127.0.0.1:9/v1"], "cannot be reached"),
        ([*teacher, "--from", "embedded:webshop-small/student"], "different vocabularies"),
    ]
    for options, words in wrong:
        assert main(["sft", HOUSE, "--out", str(out), *options]) == 2
        *notes, told = capsys.readouterr().err.strip().splitlines()
        assert words in told
        assert all("was taught" in note for note in notes)
        assert not out.exists()
    server = TeacherServer(TransformersPolicy.load(model_folder("embedded:teacher")))
    try:
        assert main(["sft", HOUSE, "--out", str(out), "--from-teacher", server.url]) == 2
    finally:
        server.stop()
    assert "shows no tokenizer" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_a_weak_student_gets_better_by_a_teachers_successes(tmp_path: Path) -> None:
    """Without an expert's word: the embedded student after the embedded teacher's successes, on the same tasks."""
    options = ["--from", "embedded:student", "--from-teacher", "embedded:teacher", "--demonstrations", "200"]
    options += ["--learning-rate", "3e-4", "--updates", "60", "--evaluate-every", "60", "--until", "50"]
    assert main(["sft", "alfworld-small", "--out", str(tmp_path / "student"), *options]) == 0
