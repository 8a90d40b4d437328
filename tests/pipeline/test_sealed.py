"""A run goes on, and is read, with the configuration that it began with: what is changed in config.yaml is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from divopd.cli import main
from divopd.errors import InputError
from divopd.pipeline.begin import begin_run, go_on
from divopd.records import Observers
from divopd.run.folder import RunFolder
from divopd.run.stored_config import check_sealed, load_run_config, stored_config
from divopd.store import Store
from small_runs import config


def edit(run: RunFolder, **changes: Any) -> None:
    """Change config.yaml as with an editor: keys with a section are written section__key."""
    data = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (data[section] if section else data)[name] = value
    run.config.write_text(yaml.safe_dump(data), encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that has begun, with keys that YAML could read as something else."""
    settings = {"id": "yes", "1": 1e-7, "é\u2028": [1, None]}
    begin_run(config(tmp_path, environment={"settings": settings}, learner={"lr": 1e-6}), tmp_path / "run")
    return RunFolder(tmp_path / "run")


def test_what_was_written_is_what_was_sealed(run: RunFolder) -> None:
    """The file reads back equal to the seal, and the seal is there with the store."""
    with Store.open_read_only(run.path) as store:
        assert store.sealed_config() == {k: v for k, v in stored_config(run.path).items() if k != "versions"}


@pytest.mark.parametrize("entry", ["resume", "library", "reader"])
def test_a_changed_key_is_named_and_refused(entry: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Batch size and method: each with what it is and what it was, by whoever relies on it."""
    began = load_run_config(run)
    edit(run, composer__batch_size=7, method="vanilla")
    told = r"composer.batch_size is 7, was 8"
    if entry == "resume":
        assert main(["train", "--resume", str(run.path)]) == 2
        said = capsys.readouterr().err
        assert "composer.batch_size is 7, was 8" in said
        assert "method is 'vanilla', was 'divopd'" in said
    elif entry == "library":
        other = began.model_copy(update={"seed": 5})
        with pytest.raises(InputError, match="seed is 5, was 0"):
            go_on(other, run.path, observer=Observers())
    else:
        with pytest.raises(InputError, match=told):
            stored_config(run.path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learner__lr": "1.0e-6"}, "learner.lr is '1.0e-6', was 1e-06"),
        ({"threads": 1.0}, "threads is 1.0, was 1"),
        ({"extra": {"deep": 1}}, "extra.deep is 1, was missing"),
        ({"costs": {}}, "costs.rollout_s is missing, was 0.5"),
    ],
)
def test_other_types_more_keys_and_fewer_keys_are_differences(changes: dict, told: str, run: RunFolder) -> None:
    """Also what would be read as the same number, and what another version would fill in."""
    edit(run, **changes)
    with pytest.raises(InputError) as refused:
        stored_config(run.path)
    assert told in str(refused.value)


def test_where_things_are_may_change(run: RunFolder) -> None:
    """Loggers, the teacher's address and patience with it, and versions of packages change no batch."""
    edit(run, loggers=["tensorboard"], teacher__url="http://127.0.0.1:1/v1", teacher__timeout_s=9.0, versions={})
    check_sealed(load_run_config(run), run.path)


def test_a_run_of_before_the_seal_still_opens(run: RunFolder) -> None:
    """Its file is believed, as it was then."""
    run.store.unlink()
    Store.create(run.store).close()
    edit(run, seed=5)
    assert load_run_config(run).seed == 5
    check_sealed(load_run_config(run), run.path)


def test_keys_that_came_later_have_their_defaults(run: RunFolder) -> None:
    """A run that an older version began, without a key that this one knows: it goes on, and not with another value."""
    with Store.open_read_only(run.path) as store:
        sealed = store.sealed_config()
    assert sealed is not None
    del sealed["curriculum"]
    data = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    del data["curriculum"]
    run.store.unlink()
    Store.create(run.store, config=sealed).close()
    run.config.write_text(yaml.safe_dump(data), encoding="utf-8")
    began = load_run_config(run)
    check_sealed(began, run.path)
    other = began.model_copy(update={"curriculum": began.curriculum.model_copy(update={"growth": 99})})
    with pytest.raises(InputError, match=r"curriculum\.growth is 99, was 6"):
        check_sealed(other, run.path)
