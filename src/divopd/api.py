"""divopd from Python: train, evaluate and replay as functions that return typed records.

    from divopd import api

    trained = api.train("default/divopd", out="runs/mine", overrides=["learner.updates=20"])
    print(trained.evaluations[-1].success_rate)
    print(api.evaluate("runs/mine", tasks=20).by_kind)
    print(api.replay("runs/mine", ["vanilla", "divopd"])["divopd"].utilization)

Each call does what the command of its name does. Importing this module imports neither torch nor pydantic: a function
that needs them imports them. What is wrong with the input is a `divopd.errors.InputError` of one line.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.errors import InputError
from divopd.methods import METHODS, make_composer
from divopd.records import EvaluationRecord, Observer, Observers, UpdateRecord
from divopd.replay import load_turns, recording_of
from divopd.run.folder import RunFolder
from divopd.turns import Turn

if TYPE_CHECKING:
    from divopd.config import Config
    from divopd.report.comparison import Replayed

__all__ = ["Trained", "evaluate", "replay", "resume", "train"]


@dataclass(frozen=True)
class Trained:
    """A run that has ended: its folder, and what its updates and its evaluations showed, in order."""

    run: Path
    updates: tuple[UpdateRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]


def train(
    config: "Config | Path | str",
    *,
    out: Path | str | None = None,
    overrides: Sequence[str] = (),
    observer: Observer | None = None,
) -> Trained:
    """Train a configuration, a file or a name such as `default/divopd` to its end, as `divopd train` does.

    `out` is the run's folder (default: runs/ENVIRONMENT-METHOD-seedN), which must not be a run yet. `overrides` are
    such as `learner.lr=1e-5`. The observer hears of every update and evaluation when it happens, and what
    `divopd train` would print. `resume` goes on with a run that was interrupted.
    """
    from divopd.models.hub import fetch_models
    from divopd.pipeline.begin import begin_run
    from divopd.plan.dry_run import check_disk, check_start, local_models

    wanted = _config(config, overrides)
    if fetch_models(local_models(wanted).values()):
        wanted = _config(config, overrides)  # a student that has come may say the form of its answers
    hears = observer or Observers()
    named = wanted.environment.name.rpartition("/")[2].replace(":", "-")
    folder = Path(out) if out else Path("runs") / f"{named}-{wanted.method}-seed{wanted.seed}"
    notes = check_start(wanted)
    check_disk(wanted, folder)
    begin_run(wanted, folder)
    for note in notes:
        hears.told(note)
    return _go_on(wanted, folder, hears)


def resume(run: Path | str, *, observer: Observer | None = None) -> Trained:
    """Go on with a run that was interrupted; one that has ended is read."""
    from divopd.run.stored_config import load_run_config

    return _go_on(load_run_config(RunFolder(run)), Path(run), observer or Observers())


def evaluate(
    what: Path | str,
    *,
    version: int | None = None,
    config: "Config | Path | str | None" = None,
    overrides: Sequence[str] = (),
    tasks: int | None = None,
) -> EvaluationRecord:
    """How often a run's weights (of `version`, or the newest) or a model succeed, as `divopd evaluate` tells.

    A run is evaluated as it was configured; a model as `config` says, in the place of its student. `tasks`: only so
    many. The version of a model that is no run's is 0.
    """
    from divopd.evaluation import exam_of
    from divopd.models.hub import fetch_models
    from divopd.pipeline.models import load_student
    from divopd.pipeline.named_models import find_weights
    from divopd.prompts import Codec
    from divopd.run.checkpoints import load_weights
    from divopd.run.stored_config import load_run_config

    run = RunFolder(what)
    if run.config.is_file():
        if config is not None or overrides:
            raise InputError(f"{what} is a run and says itself how it is evaluated; leave config and overrides out")
        wanted, weights = load_run_config(run), find_weights(run, version)
    elif config is None:
        raise InputError(f"{what}: no run there, so it is taken for a model; say how to evaluate it with config=")
    else:
        fetch_models([str(what)])
        student = [f"student.model={json.dumps(str(what))}", "student.lora=null"]
        wanted, weights = _config(config, [*overrides, *student]), None
    if tasks is not None:
        fewer = wanted.evaluation.model_copy(update={"tasks": tasks})
        wanted = wanted.model_copy(update={"evaluation": fewer})
    with _threads_kept(wanted.threads):
        policy = load_student(wanted)
        if weights is not None:
            load_weights(weights, policy.model)
        exam = exam_of(wanted, Codec(policy.tokenizer, template=wanted.prompts.template))
        return exam.record(exam.play(policy), version=int(weights.name) if weights else 0)


def replay(
    turns: Path | str | Iterable[Turn],
    methods: Sequence[str] = tuple(METHODS),
    *,
    updates: int | None = None,
    **settings: Any,
) -> "dict[str, Replayed]":
    """Run composers over the same turns and tell what each would have trained, as `divopd replay` does.

    `turns`: a run's folder, its store, a file of JSON lines, or turns in the order of their arrival. `settings` are
    those of `divopd.make_composer`: batch_size, cap and so on.
    """
    from divopd.report.comparison import compare

    given, recorded = load_turns(turns) if isinstance(turns, Path | str) else (list(turns), 0)
    recording = recording_of(given, updates=recorded)
    length = recording.updates if updates is None else updates
    composers = {name: make_composer(name, **settings, total_updates=length) for name in methods}
    return compare(recording, composers, updates=length)


def _config(config: "Config | Path | str", overrides: Sequence[str]) -> "Config":
    from divopd.config import load_config

    if isinstance(config, Path | str):
        return load_config(config, overrides)
    if overrides:
        raise InputError("overrides change what a file says; change the Config itself with model_copy")
    return config


def _go_on(config: "Config", folder: Path, observer: Observer) -> Trained:
    from divopd.pipeline.begin import go_on_holding
    from divopd.report.sample_rollouts import newest_rollouts
    from divopd.run.lock import RunLock
    from divopd.run.loggers import Loggers
    from divopd.store import Store

    settings = config.resolved()
    with (
        RunLock(folder),  # before a file of the run is touched
        _threads_kept(config.threads),
        Loggers(folder, config.loggers, settings, rollouts=partial(newest_rollouts, folder, settings)) as loggers,
    ):
        go_on_holding(config, folder, observer=Observers(loggers, observer))
    with Store.open_read_only(folder) as store:
        return Trained(folder, tuple(store.update_records().values()), tuple(store.evaluations().values()))


@contextmanager
def _threads_kept(threads: int) -> Iterator[None]:
    """Torch has as many threads as the configuration says, and afterwards as many as the caller had."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
