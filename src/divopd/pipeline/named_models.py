"""The models that commands name: a run's at one of its policy versions (RUN or RUN@VERSION), a folder, embedded:NAME.

`evaluate`, `play` and `export` load them here, each in the form of answers in which it acts.
"""

from pathlib import Path
from typing import Any

from divopd.config import Config
from divopd.environments import find_entry
from divopd.errors import InputError
from divopd.models.hub import fetch_models
from divopd.models.model_files import hub_advice, model_folder
from divopd.models.taught import read_taught
from divopd.models.transformers_policy import TransformersPolicy
from divopd.pipeline.models import load_student
from divopd.run.checkpoints import load_weights
from divopd.run.folder import RunFolder
from divopd.run.stored_config import load_run_config

TERSE_TOKENS = 32  # enough for a bare action


def split_version(name: str) -> tuple[RunFolder, int | None]:
    """The folder of a run, and the policy version if the name says one; a folder with an @ in its name goes first."""
    run, at, version = name.rpartition("@")
    if at and version.isdecimal() and not Path(name).exists():
        return RunFolder(run), int(version)
    return RunFolder(name), None


def is_run(name: str) -> bool:
    """Whether it names a run, with or without a version."""
    return split_version(name)[0].config.is_file()


def find_weights(run: RunFolder, version: int | None) -> Path:
    """The weights of a version, or of the latest; an InputError lists the versions that there are."""
    known = run.versions()
    if not known:
        raise InputError(f"{run.path}: no weights in it yet; expected a run that `divopd train` has begun")
    if version is not None and version not in known:
        raise InputError(f"{run.path}: no weights of version {version}; it has {', '.join(map(str, known))}")
    return run.weights_of(known[-1] if version is None else version)


def config_of_model(model: str, *, environment: str | None, form: dict[str, Any]) -> Config:
    """How a model acts: in `environment`, or where it was taught; in the form that is said, or that it was taught."""
    check_model(model)
    taught = read_taught(model_folder(model))
    name = environment or (taught and taught.environment)
    if not name:
        raise InputError(f"{model} is a model: say how to evaluate it with --config CONFIG or --environment ENV")
    find_entry(name)  # a wrong name is refused with the nearest one
    config = Config.model_validate({"environment": {"name": name}, "prompts": form, "student": {"model": model}})
    if config.prompts.answer != "terse":
        return config
    explorer = config.explorer.model_copy(update={"max_response_tokens": TERSE_TOKENS})
    return config.model_copy(update={"explorer": explorer})


def check_model(model: str) -> None:
    """A model of the Hub is downloaded; what is neither a run nor a model is refused."""
    if fetch_models([model]):
        return
    if not model.startswith("embedded:") and not (Path(model) / "config.json").is_file():
        raise InputError(
            f"{model}: expected a run (config.yaml), a model folder (config.json) or embedded:NAME; got neither"
            f"{hub_advice(model)}"
        )


def load_config_of_run(run: RunFolder) -> Config:
    """A run is played as it was configured; its student's first model is downloaded if it is one of the Hub."""
    config = load_run_config(run)
    fetch_models([config.student.model])
    return config


def load_policy(config: Config, weights: Path | None) -> TransformersPolicy:
    """The student of a configuration, filled with the weights of a version if there are any."""
    policy = load_student(config)
    if weights is not None:
        load_weights(weights, policy.model)
    return policy
