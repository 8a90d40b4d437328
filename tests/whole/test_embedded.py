"""The embedded models that come with the package: small, aligned, and as strong and as weak as they should be."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")

from divopd.bootstrap.embedded import RECIPES, Recipe, build  # noqa: E402
from divopd.config import load_config  # noqa: E402
from divopd.config.files import shipped_configs  # noqa: E402
from divopd.errors import UnknownNameError  # noqa: E402
from divopd.evaluation import Exam, exam_of, open_at_takeover  # noqa: E402
from divopd.models.model_files import PREFIX, model_folder  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.pipeline.preflight import load_models  # noqa: E402
from divopd.prompts import Codec  # noqa: E402

DEFAULT = shipped_configs() / "default" / "divopd.yaml"


def exam(policy: TransformersPolicy, *, tasks: int, max_prompt_tokens: int = 512) -> Exam:
    """At the environment's own horizon, where there is time to find the way; the default setting has less."""
    changes = [f"evaluation.tasks={tasks}", f"prompts.max_prompt_tokens={max_prompt_tokens}", "environment.horizon=30"]
    return exam_of(load_config(DEFAULT, changes), Codec(policy.tokenizer))


def load(role: str) -> TransformersPolicy:
    return TransformersPolicy.load(model_folder(f"embedded:{role}"))


@pytest.mark.parametrize("setting", ["default", "webshop-small", "scienceworld-short"])
def test_models_come_with_the_package_and_fit_each_other(setting: str) -> None:
    """Nothing is downloaded or built for a setting that has embedded models, and its preflight passes."""
    config = load_config(shipped_configs() / setting / "divopd.yaml")
    files = [path for part in (config.student, config.teacher) for path in model_folder(part.model).iterdir()]
    assert sum(path.stat().st_size for path in files) < 10e6
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in files)
    models = load_models(config)
    assert models.student.tokenizer.get_vocab() == load(config.teacher.model.removeprefix(PREFIX)).tokenizer.get_vocab()


def test_teacher_and_student_are_of_different_origin() -> None:
    """A student that began with the teacher's weights would only have to undo its weakening."""
    assert RECIPES["alfworld-small/teacher"].seed != RECIPES["alfworld-small/student"].seed
    teacher, student = (load(role).model.model.embed_tokens.weight.detach() for role in ("teacher", "student"))
    similarity = torch.nn.functional.cosine_similarity(teacher, student).abs().mean()
    assert similarity < 0.3


def test_a_name_that_is_none_is_refused() -> None:
    for name in ("techer", "webshop-small/../teacher"):
        with pytest.raises(UnknownNameError, match=name):
            model_folder(f"embedded:{name}")
    assert model_folder("some/folder") == Path("some/folder")


@pytest.mark.slow
def test_the_teacher_knows_its_way_and_the_student_does_not() -> None:
    """On the first 30 held-out tasks; the slow test has all of them and the takeover."""
    teacher, student = load("teacher"), load("student")
    assert exam(teacher, tasks=30).play(teacher).percent >= 80
    assert exam(student, tasks=30).play(student).percent <= 30


@pytest.mark.slow
def test_a_model_is_made_by_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lessons, weakening and saving all run, with a recipe of a few updates."""
    brief = Recipe("webshop-small", seed=0, stages=((2, 3e-3),), weak_percent=100.0, weak_updates=1)
    monkeypatch.setitem(RECIPES, "webshop-small/brief", brief)
    percent = build("webshop-small/brief", tmp_path / "model")
    assert 0 <= percent <= 100
    assert TransformersPolicy.load(tmp_path / "model").model.num_parameters() < 2e6


@pytest.mark.slow
def test_success_rates_on_all_held_out_tasks() -> None:
    """Teacher at least 85 %, at least 70 % when it takes over after ten turns; student between 5 and 25 %.

    The teacher takes over with the whole conversation before it; with prompts cut at 512 tokens it is at 66 %.
    """
    teacher, student = load("teacher"), load("student")
    cut = exam(teacher, tasks=140)
    assert cut.play(teacher).percent >= 85
    assert 5 <= cut.play(student).percent <= 25
    whole = exam(teacher, tasks=140, max_prompt_tokens=1024)
    taken_over = whole.play_takeover(teacher, student=student, after_turns=10)
    assert open_at_takeover(taken_over, after_turns=10).percent >= 70
