"""The embedded models that come with the package: small, aligned, and as strong and as weak as they should be."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from divopd.config import load_config  # noqa: E402
from divopd.config_files import shipped_configs  # noqa: E402
from divopd.embedded import RECIPES, SHIPPED, Recipe, embedded_model, find_embedded  # noqa: E402
from divopd.errors import UnknownNameError  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.pipeline.evaluator import Evaluator  # noqa: E402
from divopd.pipeline.models import load_models  # noqa: E402
from divopd.prompts import Codec  # noqa: E402

DEFAULT = shipped_configs() / "default" / "divopd.yaml"


def evaluator(policy: TransformersPolicy, *, tasks: int) -> Evaluator:
    return Evaluator(load_config(DEFAULT, [f"evaluation.tasks={tasks}"]), Codec(policy.tokenizer))


def load(role: str) -> TransformersPolicy:
    return TransformersPolicy.load(embedded_model(role))


def test_the_default_models_come_with_the_package_and_fit_each_other() -> None:
    """Nothing is downloaded or built for the default configuration, and its preflight passes."""
    files = [path for role in ("teacher", "student") for path in (SHIPPED / "alfworld-small" / role).iterdir()]
    assert sum(path.stat().st_size for path in files) < 10e6
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in files)
    models = load_models(load_config(DEFAULT))
    assert models.student.tokenizer.get_vocab() == load("teacher").tokenizer.get_vocab()


def test_teacher_and_student_are_of_different_origin() -> None:
    """A student that began with the teacher's weights would only have to undo its weakening."""
    assert RECIPES["alfworld-small/teacher"].seed != RECIPES["alfworld-small/student"].seed
    teacher, student = (load(role).model.model.embed_tokens.weight.detach() for role in ("teacher", "student"))
    similarity = torch.nn.functional.cosine_similarity(teacher, student).abs().mean()
    assert similarity < 0.3


def test_a_name_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnknownNameError, match="techer"):
        embedded_model("techer")
    assert find_embedded("webshop-small/teacher") is None


def test_the_teacher_knows_its_way_and_the_student_does_not() -> None:
    """On the first 30 held-out tasks; the slow test has all of them and the takeover."""
    teacher, student = load("teacher"), load("student")
    assert evaluator(teacher, tasks=30).evaluate(teacher)["success_rate"] >= 80
    assert evaluator(student, tasks=30).evaluate(student)["success_rate"] <= 30


@pytest.mark.slow
def test_a_model_that_is_not_shipped_is_built_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lessons, weakening and saving all run, with a recipe of a few updates; the second call finds the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    brief = Recipe("webshop-small", seed=0, stages=((2, 3e-3),), weak_percent=100.0, weak_updates=1)
    monkeypatch.setitem(RECIPES, "webshop-small/brief", brief)
    folder = embedded_model("webshop-small/brief")
    assert tmp_path in folder.parents
    built = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert embedded_model("webshop-small/brief") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == built
    assert load("webshop-small/brief").model.num_parameters() < 2e6


@pytest.mark.slow
def test_success_rates_on_all_held_out_tasks() -> None:
    """Teacher at least 85 %, at least 70 % when it takes over after ten turns; student between 5 and 25 %."""
    teacher, student = load("teacher"), load("student")
    whole = evaluator(teacher, tasks=140)
    assert whole.evaluate(teacher)["success_rate"] >= 85
    assert 5 <= whole.evaluate(student)["success_rate"] <= 25
    assert whole.evaluate_takeover(teacher, student=student, after_turns=10)["success_rate"] >= 70
