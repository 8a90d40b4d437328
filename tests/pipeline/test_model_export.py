"""`divopd export RUN[@VERSION] --model FOLDER`: a model of its own that others load, with a card."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch", reason="for want of the extra train")
pytest.importorskip("transformers", reason="for want of the extra train")
pytest.importorskip("peft", reason="for want of the extra lora")

from divopd.cli import main  # noqa: E402
from divopd.config import load_config  # noqa: E402
from divopd.models.taught import Taught, read_taught  # noqa: E402
from divopd.models.transformers_policy import TransformersPolicy  # noqa: E402
from divopd.pipeline.named_models import find_weights, load_policy, split_version  # noqa: E402
from divopd.prompts import Codec  # noqa: E402
from divopd.store import Store  # noqa: E402
from small_runs import config, train_small  # noqa: E402

pytestmark = pytest.mark.usefixtures("threads_as_before")
PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four updates of adapters, so large that they show; versions 0, 2 and 4 are evaluated."""
    folder = tmp_path_factory.mktemp("export") / "an @ run"
    student = {"lora": {"rank": 4, "alpha": 64}}
    changed = {
        "student": student,
        "learner": {"updates": 4, "lr": 3e-2},
        "evaluation": {"every": 2, "temperature": 0.7},
    }
    train_small(folder, config(models, **changed))
    return folder


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "student"
    assert main(["export", f"{run}@2", "--model", str(folder)]) == 0
    return folder


def policy_of(run: Path, version: int) -> TransformersPolicy:
    folder, _ = split_version(str(run))
    return load_policy(load_config(run / "config.yaml"), find_weights(folder, version))


def test_transformers_loads_the_version_with_its_adapters_merged(run: Path, exported: Path) -> None:
    """The same logits as the run's student at that version, and at no other; nothing of ours is needed to load it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(exported, local_files_only=True)
    assert "adapter_config.json" not in {file.name for file in exported.iterdir()}
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    seen = logits[:-1].gather(-1, torch.tensor(PROMPT[1:])[:, None])[:, 0].double().numpy()
    scores = {v: policy_of(run, v).score([PROMPT], [[(1, len(PROMPT))]])[0][0] for v in (0, 2, 4)}
    np.testing.assert_allclose(seen, scores[2], atol=1e-4)
    for other in (0, 4):
        assert np.abs(seen - scores[other]).max() > 1e-2


def test_tokenizer_and_chat_template_are_those_of_the_student(run: Path, exported: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(exported, local_files_only=True), policy_of(run, 2).tokenizer
    said = [{"role": "user", "content": "You see a desk 1."}]
    assert theirs.get_vocab() == ours.get_vocab()
    assert theirs.apply_chat_template(said, tokenize=False) == ours.apply_chat_template(said, tokenize=False) != ""


def test_generation_is_set_as_it_was_evaluated(run: Path, exported: Path) -> None:
    """Plain sampling at the evaluation's temperature, as many tokens, and the stop token of the chat template."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(exported, local_files_only=True)
    policy = policy_of(run, 2)
    said = model.generation_config
    assert (said.do_sample, said.temperature, said.top_k, said.top_p) == (True, 0.7, 0, 1.0)
    assert said.max_new_tokens == load_config(run / "config.yaml").explorer.max_response_tokens
    assert said.eos_token_id[0] == Codec(policy.tokenizer).stop
    likeliest = model.generate(torch.tensor([PROMPT]), do_sample=False, temperature=None, top_k=None, top_p=None)
    (own,) = policy.respond([PROMPT], temperature=0.0, max_tokens=said.max_new_tokens, seeds=[0])
    assert likeliest[0, len(PROMPT) :].tolist() == own.ids


def test_it_is_evaluated_as_the_runs_version(run: Path, exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Success rate and turns; the folder says the form of answers itself."""
    figures = []
    for what in ([f"{run}@2"], [str(exported), "--config", str(run / "config.yaml")]):
        assert main(["evaluate", *what, "--json"]) == 0
        told = capsys.readouterr()
        assert "was taught" not in told.err
        figures.append({name: value for name, value in json.loads(told.out).items() if name not in ("what", "version")})
    assert figures[0] == figures[1]
    assert read_taught(exported) == Taught("alfworld-small", "terse", "unlisted")


def test_the_card_says_method_data_commit_and_figures(run: Path, exported: Path) -> None:
    """Every figure is the run's own; the header is what model hubs read; no path of this machine is in it."""
    card = (exported / "README.md").read_text(encoding="utf-8")
    _, header, text = card.split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "transformers"
    with Store.open_read_only(run) as store:
        evaluations, updates = store.evaluations(), store.update_records(last=1)
    assert f"success rate of this version: {evaluations[2].success_rate:.1f} %** on 3 tasks" in text
    assert f"at first: {evaluations[0].success_rate:.1f} % (version 0)" in text
    assert f"{sum(one.batch.rows for one in updates.values()):,} turns were trained" in text
    assert f"{updates[1].spent.trained_tokens:,} tokens" in text
    for words in ("method: `divopd`", "2 updates of adapters (LoRA, rank 4, alpha 64), merged", "`alfworld-small`"):
        assert words in text
    code = json.loads((run / "run.json").read_text(encoding="utf-8"))["code"]
    assert (f"commit `{code['commit']}`" if code else "was not recorded") in text
    assert str(run.parent) not in card


def test_the_latest_version_is_meant_and_a_model_is_replaced_on_demand(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--force replaces a model's folder; no trace of the old one or of a half-written one is left."""
    out = tmp_path / "out"
    assert main(["export", str(run), "--model", str(out)]) == 0
    assert f"version 4 of {run}" in capsys.readouterr().out
    assert main(["export", f"{run}@0", "--model", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert "version 4" in (out / "README.md").read_text(encoding="utf-8")
    (out / "stray").touch()
    assert main(["export", f"{run}@0", "--model", str(out), "--force"]) == 0
    text = (out / "README.md").read_text(encoding="utf-8")
    assert "version 0" in text
    assert not (out / "stray").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_without_records_has_a_card_that_says_so(run: Path, tmp_path: Path) -> None:
    """Weights and a configuration are enough."""
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(run / "weights", bare / "weights")
    shutil.copy(run / "config.yaml", bare)
    assert main(["export", str(bare), "--model", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "commit of divopd was not recorded" in text
    assert "recorded no evaluation" in text


def test_what_cannot_be_exported_is_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, and neither a run nor a folder that is no model is ever replaced."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").touch()
    out = str(tmp_path / "out")
    wrong = [
        ([f"{run}@3000", "--model", out], "it has 0, 1, 2, 3, 4"),
        ([f"{tmp_path}@2", "--model", out], "no run there"),
        ([f"{run}", "--model", str(tmp_path / "mine"), "--force"], "exists already"),
        ([f"{run}", "--model", str(run), "--force"], "exists already"),
        ([f"{run}", "--model", str(tmp_path / "file" / "out")], "cannot be written"),
        ([f"{run}"], "expected one thing"),
        ([f"{run}", out, "--model", out], "expected one thing"),
    ]
    for arguments, words in wrong:
        assert main(["export", *arguments]) == 2
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]
    assert (run / "store.db").exists()
