"""Tokens that the teacher does not know: never sampled, or masked and counted; and prompts of the teacher's own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.cli import main
from divopd.config import Config, load_config
from divopd.environments import Observation
from divopd.errors import AlignmentError, InputError
from divopd.evaluation import exam_of
from divopd.explorer import Acting, Start, play, rows_of
from divopd.first_evaluation import first_evaluation_file
from divopd.learner.torch_learner import TorchLearner
from divopd.models.policy import Response
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.models import load_student, load_teachers
from divopd.pipeline.preflight import load_models
from divopd.pipeline.vocabularies import Vocabularies
from divopd.plan.dry_run import check_start, make_plan
from divopd.prompts import Codec, PromptStyle, Reader
from divopd.prompts.formats import Format
from divopd.prompts.vocabulary import foreign_ids
from divopd.recovery import Recovery
from divopd.store import Store
from divopd.teacher import check_masked, score_rollouts
from divopd.turns import Rollout, Turn
from divopd.validity import valid_mask, why_invalid
from small_runs import config, train_small
from token_pairs import MARKS, ROWS, mark_ids, save_pair, student_tokenizer, teacher_tokenizer

ROOT = Path(__file__).parents[2]
THINK, CLOSE = mark_ids()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pair(tmp_path_factory.mktemp("pair"))


def settings(pair: Path, *, prompt: str = "own", system: str = "Think inside <think> </think>.", **more: Any) -> Config:
    prompts = {"system": system, "max_prompt_tokens": 600, **more.pop("prompts", {})}
    return config(pair, prompts=prompts, teacher={"prompt": prompt}, **more)


def texts(pair: Path, role: str) -> TransformersPolicy:
    return TransformersPolicy.load(pair / role)


# ── what a model knows ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_knows_its_tokenizers_ids_and_not_its_padded_rows(pair: Path) -> None:
    """The teacher has a row for every id of the student, and refuses those that its tokenizer does not have."""
    teacher = texts(pair, "teacher")
    for wrong in (THINK, CLOSE, ROWS - 1, ROWS, -1):
        with pytest.raises(AlignmentError, match=f"token id {wrong} is outside the model's vocabulary"):
            teacher.score([[5, wrong, 6]], [[(1, 3)]])
        with pytest.raises(AlignmentError, match=f"token id {wrong} is outside"):
            teacher.respond([[5, wrong]], temperature=1.0, max_tokens=1, seeds=[0])
    student = texts(pair, "student")
    assert len(student.score([[5, THINK, CLOSE]], [[(1, 3)]])[0][0]) == 2


def test_foreign_ids_are_those_of_the_tokenizer_and_the_padding_with_their_text() -> None:
    """The teacher spells a mark in its own ids; a row without a token has no text."""
    found = foreign_ids(student_tokenizer(), teacher_tokenizer(), rows=ROWS)
    assert set(found) == set(range(THINK, ROWS))
    assert teacher_tokenizer().decode(found[THINK]) == "<think>"
    assert found[ROWS - 1] == []
    assert foreign_ids(teacher_tokenizer(), student_tokenizer()) == {}


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
def test_the_student_never_samples_what_the_teacher_does_not_know(pair: Path, temperature: float) -> None:
    """It would say little else; the recorded log probabilities are those of the whole distribution all the same."""
    prompts, seeds = [[5, 6, 7]] * 40, list(range(40))
    free = texts(pair, "student").respond(prompts, temperature=max(temperature, 0.4), max_tokens=6, seeds=seeds)
    assert any({THINK, CLOSE} & set(response.ids) for response in free)
    student = load_student(settings(pair))
    for response in student.respond(prompts, temperature=temperature, max_tokens=6, seeds=seeds):
        assert max(response.ids) < THINK
        [[again]] = student.score([[*prompts[0], *response.ids]], [[(3, 3 + len(response.ids))]])
        np.testing.assert_allclose(response.logprobs, again, atol=1e-4)


# ── masked and counted ────────────────────────────────────────────────────────────────────────────────────────────


def row(response: Sequence[int], *, prompt: Sequence[int] = (5, 6, 7)) -> Turn:
    return Turn(
        "r0",
        0,
        task="t",
        version=0,
        prompt_ids=list(prompt),
        response_ids=list(response),
        student_logprobs=[-1.0] * len(response),
        action_mask=[1] * len(response),
    )


def test_a_token_that_could_not_be_forbidden_is_masked_and_counted(pair: Path) -> None:
    """The teacher reads its text, so that what follows is scored as the teacher understands it."""
    teacher, foreign = texts(pair, "teacher"), foreign_ids(student_tokenizer(), teacher_tokenizer(), rows=ROWS)
    response = [8, THINK, 9, 10, ROWS - 1, CLOSE]
    [scored] = score_rollouts(teacher, [Rollout("r0", (row(response),))], foreign=foreign)
    [turn] = scored.turns
    assert turn.teacher_mask == [1, 0, 1, 1, 0, 0]
    assert list(valid_mask(turn)) == [1, 0, 1, 1, 0, 0]
    assert why_invalid(turn) is None
    read = [5, 6, 7, 8, *foreign[THINK], 9, 10]
    [[first, later]] = teacher.score([read], [[(3, 4), (len(read) - 2, len(read))]])
    assert turn.teacher_logprobs is not None
    np.testing.assert_allclose(np.asarray(turn.teacher_logprobs)[[0, 2, 3]], [*first, *later], atol=1e-5)
    assert np.isnan(np.asarray(turn.teacher_logprobs)[[1, 4, 5]]).all()
    check_masked([turn], foreign)

    figures = TorchLearner(texts(pair, "student")).gradient(
        [replace(turn, response_ids=[8, THINK, 9, 10, CLOSE, CLOSE])]
    )
    assert (figures.masked_tokens, figures.valid_tokens) == (3, 3)
    assert "update 4: 3 response tokens are masked" in (figures.warning(update=4) or "")
    assert TorchLearner(texts(pair, "student")).gradient([replace(turn, teacher_mask=None)]).masked_tokens == 0


def test_a_valid_token_that_the_teacher_does_not_know_stops_the_preflight() -> None:
    """It says the share; a turn whose tokens are all unknown is invalid instead."""
    turn = replace(row([8, THINK, 9, 10]), teacher_logprobs=[-1.0] * 4)
    with pytest.raises(AlignmentError, match=r"1 of 4 tokens \(25\.0%\) that the teacher scored .* such as "):
        check_masked([turn], {THINK: []})
    check_masked([replace(turn, teacher_mask=[1, 0, 1, 1])], {THINK: []})


def test_a_response_of_unknown_tokens_only_is_invalid(pair: Path) -> None:
    [scored] = score_rollouts(
        texts(pair, "teacher"), [Rollout("r0", (row([THINK, CLOSE]),))], foreign={THINK: [9], CLOSE: []}
    )
    assert why_invalid(scored.turns[0]) == "no_valid_token"


def test_a_shared_prompt_with_an_unknown_id_is_not_scored(pair: Path) -> None:
    """An environment may spell a mark at any time: it costs the turn, not the run."""
    rows = Rollout("r0", (row([8, 9], prompt=[5, THINK, 7]), replace(row([8, 9]), turn=1)))
    [scored] = score_rollouts(texts(pair, "teacher"), [rows], foreign={THINK: [5]})
    assert [why_invalid(turn) for turn in scored.turns] == ["no_teacher_logprobs", None]


# ── the preflight ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_shared_prompts_that_the_teacher_cannot_read_are_refused_with_their_share(pair: Path, tmp_path: Path) -> None:
    """Before anything starts, in the dry run, and when the models are loaded; the message says what to do."""
    shared = settings(pair, prompt="shared")
    said = (
        r"does not have 2 of the \d+ token ids \(\d+\.\d%\) of a shared prompt: <think> \(\d+\), </think> \(\d+\); set "
    )
    for ask in (check_start, load_models, lambda asked: make_plan(asked, out=tmp_path).refuse_problems()):
        with pytest.raises((AlignmentError, InputError), match=said + "teacher.prompt to own"):
            ask(shared)


def test_what_is_done_about_unknown_tokens_is_said(pair: Path, tmp_path: Path) -> None:
    """With own prompts, and with shared ones that hold none."""
    own, harmless = settings(pair), settings(pair, prompt="shared", system="Act.")
    for asked, reads in ((own, "it reads prompts of its own"), (harmless, "shared prompts have none of them")):
        [note] = [note for note in check_start(asked) if "never samples" in note]
        assert note.startswith(f"the student never samples {MARKS[0]} ({THINK}), {MARKS[1]} ({CLOSE}): ")
        assert note.endswith(reads)
        load_models(asked)
    plan = "\n".join(make_plan(own, out=tmp_path).lines)
    assert "never samples <think>" in plan
    assert "the teacher reads its own prompts:" in plan
    assert "reads its own prompts" not in "\n".join(make_plan(harmless, out=tmp_path).lines)


@pytest.mark.parametrize("name", [name for name in get_args(Format) if name != "chat"])
def test_the_texts_of_a_format_are_checked_too(pair: Path, name: str) -> None:
    """GiGPO's messages ask for <think>; Embodied-Planner-R1's do not, so its prompts may be shared."""
    asked = config(pair, prompts={"format": name, "actions": None, "answer": None}, teacher={"prompt": "shared"})
    if name.startswith("gigpo"):
        with pytest.raises(AlignmentError, match="of a shared prompt: <think>"):
            Vocabularies(asked).check()
    else:
        assert "shared prompts have none of them" in (Vocabularies(asked).check() or "")


def test_an_argument_that_the_template_does_not_have_is_refused(pair: Path) -> None:
    with pytest.raises(InputError, match=r"prompts\.template has enable_thinkin, which the student's chat template"):
        Vocabularies(settings(pair, prompts={"template": {"enable_thinkin": False}})).student_codec()


def test_own_prompts_need_the_teachers_tokenizer(pair: Path) -> None:
    asked = config(pair, teacher={"prompt": "own", "url": "http://127.0.0.1:9/v1", "model": "elsewhere"})
    with pytest.raises(InputError, match="the tokenizer of the teacher is not on this machine"):
        Vocabularies(asked).check()


def test_a_model_that_has_nothing_to_do_with_the_teacher_is_forbidden_nothing(pair: Path, models: Path) -> None:
    """As when `divopd evaluate` plays a model beside the default teacher."""
    asked = config(pair, teacher={"model": str(models / "teacher")})
    assert Vocabularies(asked).forbidden == ()


# ── the teacher's own prompts ─────────────────────────────────────────────────────────────────────────────────────


class Hall:
    """Nothing ever happens."""

    def reset(self, task: str) -> Observation:
        self.turn = 0
        return Observation("you see a door")

    def step(self, action: str) -> Observation:
        self.turn += 1
        return Observation(f"turn {self.turn}")


class Speaker:
    """Says the same every time and keeps the prompts that it was given."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids, self.prompts = list(ids), list[list[int]]()

    def respond(self, prompts: Sequence[Sequence[int]], **_: object) -> list[Response]:
        self.prompts += [list(prompt) for prompt in prompts]
        return [Response(list(self.ids), np.full(len(self.ids), -0.5)) for _ in prompts]

    def score(self, sequences: Any, spans: Any) -> list[list[np.ndarray]]:
        raise NotImplementedError


STYLE = PromptStyle(system="Think inside <think> </think>.", answer="terse", actions="unlisted")


def played(*, said: Sequence[int], turns: int = 3, limit: int = 600, **changes: Any) -> tuple[Any, Speaker, Speaker]:
    """A rollout of a student with a teacher that reads its own prompts, and both speakers."""
    spelling = foreign_ids(student_tokenizer(), teacher_tokenizer(), rows=ROWS)
    style = replace(STYLE, max_prompt_tokens=limit)
    reader = Reader(style, Codec(teacher_tokenizer(), spelling=spelling))
    codec = Codec(student_tokenizer(), template={"enable_thinking": False})
    acting = Acting(
        style, codec, temperature=1.0, max_response_tokens=4, seed=0, teacher_reader=lambda task: reader, **changes
    )
    student, teacher = Speaker(said), Speaker(codec.response_ids("look"))
    [one] = play(
        [Start(0, "t", turns)], acting, student=student, teacher_of=lambda task: teacher, environments=[Hall()]
    )
    return one, student, teacher


def rendered(tokenizer: Any, said: Sequence[str], **template: Any) -> str:
    """The history by the tokenizer's own template."""
    messages = [("system", STYLE.system), ("user", "you see a door")]
    for number, text in enumerate(said):
        messages += [("assistant", text), ("user", f"turn {number + 1}")]
    return tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in messages],
        tokenize=False,
        add_generation_prompt=True,
        **template,
    )


def test_the_teacher_reads_the_history_in_its_own_template_and_tokenizer(pair: Path) -> None:
    """Only the ids of responses are shared; scores are those after the teacher's prompt, and prefixes stay shared."""
    said = Codec(student_tokenizer()).response_ids("go")
    one, student, _ = played(said=said)
    rows = rows_of(one, name="r0", version=0)
    assert rows is not None
    assert rows.teacher_prompts is not None
    theirs = teacher_tokenizer()
    for turn, prompt in zip(rows.turns, rows.teacher_prompts, strict=True):
        assert theirs.decode(list(prompt)) == rendered(theirs, ["go"] * turn.turn)
        assert max(prompt) < THINK
        assert turn.prompt_ids == student.prompts[turn.turn]
        assert THINK in turn.prompt_ids  # the student's template writes an empty thought
    assert rows.teacher_prompts[1][: len(rows.teacher_prompts[0]) + len(said)] == [*rows.teacher_prompts[0], *said]
    teacher = texts(pair, "teacher")
    [scored] = score_rollouts(teacher, [rows], foreign={THINK: [], CLOSE: []})
    assert scored.teacher_prompts is None
    for turn, prompt in zip(scored.turns, rows.teacher_prompts, strict=True):
        [[expected]] = teacher.score([[*prompt, *said]], [[(len(prompt), len(prompt) + len(said))]])
        np.testing.assert_allclose(np.asarray(turn.teacher_logprobs), expected, atol=1e-5)
        assert turn.teacher_mask is None


def test_a_mark_in_a_response_is_spelled_in_the_teachers_history() -> None:
    """So its prompts never hold an id that it does not know."""
    one, *_ = played(said=[THINK, *Codec(student_tokenizer()).response_ids("go")])
    second = one.turns[1].teacher_prompt.ids
    assert max(second) < THINK
    assert teacher_tokenizer().decode(second) == rendered(teacher_tokenizer(), ["<think>go"])


def test_a_teacher_that_acts_reads_its_own_prompt() -> None:
    """Its turns stand in both histories."""
    codec = Codec(student_tokenizer())
    one, student, teacher = played(said=codec.response_ids(""), turns=4, recovery=Recovery(patience=1, takeover=1))
    assert [turn.actor for turn in one.turns] == ["student", "teacher", "student", "student"]
    assert [teacher_tokenizer().decode(prompt)[:10] for prompt in teacher.prompts] == ["system<|se"]
    assert "robot<|act|>look<|end|>" in teacher_tokenizer().decode(one.turns[2].teacher_prompt.ids)
    assert "<|act|><think></think>look<|end|>" in student_tokenizer().decode(student.prompts[1])
    rows = rows_of(one, name="r0", version=0)
    assert rows is not None
    assert rows.teacher_prompts is not None
    assert [turn.turn for turn in rows.turns] == [0, 2, 3]
    assert len(rows.teacher_prompts) == 3


def test_a_turn_whose_own_prompt_was_cut_is_a_dead_row() -> None:
    """The teacher's template is longer here: its prompt is cut where the student's still fits."""
    said = Codec(student_tokenizer()).response_ids("go")
    whole, *_ = played(said=said)
    lengths = [(len(turn.prompt.ids), len(turn.teacher_prompt.ids)) for turn in whole.turns]
    assert all(student < teacher for student, teacher in lengths)
    one, *_ = played(said=said, limit=lengths[-1][0])
    assert not one.turns[-1].prompt.truncated
    rows = rows_of(one, name="r0", version=0)
    assert rows is not None
    cut = [theirs > lengths[-1][0] for _, theirs in lengths]
    assert cut[0] < cut[-1]
    assert [turn.prompt_truncated for turn in rows.turns] == cut
    assert why_invalid(rows.turns[-1]) == "prompt_truncated"
    assert not any(rows.turns[-1].action_mask or ())


def test_own_prompts_wait_with_their_rollout_for_the_teacher(tmp_path: Path) -> None:
    """The store keeps them until the rollout is scored, and a number of prompts that does not fit is refused."""
    rows = rows_of(played(said=Codec(student_tokenizer()).response_ids("go"))[0], name="r0", version=0)
    assert rows is not None
    with Store.create(tmp_path / "store.db") as store:
        store.offer(rows, generated_tokens=1)
        [waiting] = store.unscored(1)
        assert waiting.teacher_prompts == rows.teacher_prompts
        store.put(waiting)
        assert store.unscored(1) == []
    with pytest.raises(InputError, match="2 prompts of the teacher for 3 turns"):
        Rollout("r0", rows.turns, teacher_prompts=(rows.teacher_prompts or ())[:2])


@pytest.mark.parametrize("clock", ["simulated", pytest.param("live", marks=pytest.mark.slow)])
def test_a_run_with_own_prompts_trains_on_known_tokens_only(pair: Path, tmp_path: Path, clock: str) -> None:
    """No stored response has an unknown token, and the scores are not those after the student's prompt."""
    template = {"template": {"enable_thinking": False}}
    asked = settings(pair, prompts=template, method="divopd-r", recovery={"patience": 1, "takeover": 1}, clock=clock)
    train_small(tmp_path / "run", asked)
    teachers = load_teachers(asked)
    reader = Vocabularies(asked).teacher_reader()
    assert reader is not None
    exam = exam_of(asked, Vocabularies(asked).student_codec())
    remembered = [first_evaluation_file(asked, exam, ids) for ids in (Vocabularies(asked).forbidden, ())]
    assert [file.exists() for file in remembered if file] == [True, False]  # not for students who may say all
    with Store.open_read_only(tmp_path / "run") as store:
        turns = [turn for turn in store.turns() if not turn.prompt_truncated]
        assert turns
        assert all(max(turn.response_ids) < THINK and turn.teacher_mask is None for turn in turns)
        assert all(CLOSE in turn.prompt_ids for turn in turns)
        for first in [turn for turn in turns if turn.turn == 0][:5]:
            text = student_tokenizer().decode(list(first.prompt_ids)).split("<|see|>")[2].partition("<|act|>")[0]
            codec = reader(first.task).codec
            prompt = [
                *codec.open_system,
                *codec.text_ids(asked.prompts.system),
                *codec.open_user,
                *codec.text_ids(text),
            ]
            whole = [*prompt, *codec.open_response, *first.response_ids]
            start = len(whole) - len(first.response_ids)
            [[expected]] = teachers.default.score([whole], [[(start, len(whole))]])
            np.testing.assert_allclose(np.asarray(first.teacher_logprobs), expected, atol=1e-4)


@pytest.mark.parametrize("setting", ["alfworld-1.7b", "alfworld-4b"])
def test_the_papers_qwen3_settings_let_the_teacher_read_its_own_prompts(setting: str) -> None:
    found = load_config(ROOT / "configs" / setting / "divopd.yaml")
    assert (found.teacher.prompt, dict(found.prompts.template)) == ("own", {"enable_thinking": False})


def test_a_teacher_that_takes_over_reads_prompts_as_in_training(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`evaluate TEACHER --after STUDENT`: its own ones where the configuration says so; shared ones are refused."""
    for prompt, code in (("own", 0), ("shared", 2)):
        file = tmp_path / f"{prompt}.yaml"
        file.write_text(settings(pair, prompt=prompt).to_yaml(), encoding="utf-8")
        command = ["evaluate", str(pair / "teacher"), "--config", str(file), "--after", str(pair / "student")]
        assert main([*command, "--after-turns", "1", "--tasks", "2", "--json"]) == code
        said = capsys.readouterr()
        assert ('"tasks": 2' in said.out) == (code == 0)
        assert ("set teacher.prompt to own" in said.err) == (code == 2)
