"""Runs for tests of single config keys: the same small run with and without the change, seen as a user sees it.

    @changing("learner.lr", "2e-3")
    def test_the_first_step_grows_with_the_learning_rate(before: Run, after: Run) -> None: ...

`before` is a run of BASE and `after` the same with another value of this one key; what follows the value is set in
both. A run takes a third of a second: `divopd train` makes it in this process, and none is made twice.
"""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

import recording_rooms
from divopd.cli import main
from divopd.turns import Turn
from recorded_run import RecordedRun

BASE = {
    "method": "divopd",
    "environment": {"name": f"{recording_rooms.__file__}:StuckRoom", "horizon": 4, "workers": 0},
    "prompts": {"answer": "terse", "max_prompt_tokens": 900},
    "composer": {"batch_size": 6, "cap": 2},
    "learner": {"updates": 3, "lr": 1e-3, "checkpoint_every": 2},
    "explorer": {"rollouts_in_flight": 2, "max_response_tokens": 4},
    "evaluation": {"every": 1, "tasks": 2},
}
TESTED: dict[str, list[str]] = {}  # keys, and the tests that change them


class Planned(NamedTuple):
    """Why a key is not run here, and the test that runs it."""

    needs: str
    run_by: str | None


PLANNED: dict[str, Planned] = {}  # keys of which only the dry run is looked at


def changing(key: str, to: str, *given: str) -> Callable[..., Any]:
    """A test with two runs, `before` and `after`. `$models` and `$tests` in a value are those folders."""
    return _registered(key, "before, after", (given, (*given, f"{key}={to}")))


def checks(*keys: str) -> Callable[..., Any]:
    """A test that makes its runs itself."""

    def mark(test: Callable[..., None]) -> Any:
        for key in keys:
            TESTED.setdefault(key, []).append(test.__name__)
        return test

    return mark


def planning(key: str, to: str, *given: str, needs: str, run_by: str | None = None) -> Callable[..., Any]:
    """A test with two dry runs, of a key that `needs` what test machines need not have.

    `run_by` is a test that changes the key in a real run; None: no machine of ours can.
    """
    PLANNED[key] = Planned(needs, run_by)
    return _registered(key, "plan_before, plan_after", (given, (*given, f"{key}={to}")))


def _registered(key: str, names: str, changes: tuple[tuple[str, ...], tuple[str, ...]]) -> Callable[..., Any]:
    def mark(test: Callable[..., None]) -> Any:
        return pytest.mark.parametrize(names, [changes], ids=[key], indirect=True)(checks(key)(test))

    return mark


@dataclass(frozen=True)
class Play:
    """One rollout as the environment saw it; `room` tells one environment from the others."""

    room: str
    task: str
    actions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Pass:
    """One time that a model read tokens; `training` tells the learner from those who act and score."""

    training: bool
    threads: int


@dataclass(frozen=True)
class Passes:
    """What the models of a run did: every pass, and how often a linear layer of the learner was at work."""

    all: list[Pass] = field(default_factory=list)
    layers_trained: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Run(RecordedRun):
    """A run that has ended, or was refused: then `code` is not 0, and `said` tells why."""

    said: str = field(repr=False)
    passes: Passes = field(repr=False)

    @cached_property
    def config(self) -> dict[str, Any]:
        return yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))

    @cached_property
    def updates(self) -> list[dict[str, Any]]:
        return list(self.metrics("update").values())

    @cached_property
    def evaluations(self) -> dict[int, dict[str, Any]]:
        return self.metrics("evaluation")

    @cached_property
    def rows(self) -> list[Turn]:
        """What `divopd export` writes: all turns, in arrival order."""
        with redirect_stdout(io.StringIO()):
            return self.turns()

    @cached_property
    def begun(self) -> list[list[Turn]]:
        """The turns of each rollout, in the order in which rollouts were begun."""
        names = sorted({turn.rollout for turn in self.rows})
        return [[turn for turn in self.rows if turn.rollout == name] for name in names]

    @cached_property
    def first_batch(self) -> list[tuple[str, int]]:
        """In the order of training."""
        return [turn.key for turn in self.batches()[0]]

    def tensors(self, version: int) -> dict[str, Tensor]:
        """The weights of a policy version."""
        return load_file(self.weights(version) / "weights.safetensors")

    @cached_property
    def plays(self) -> list[Play]:
        """All rollouts in the order in which they began, those of evaluations among them."""
        plays: dict[str, Play] = {}
        record = recording_rooms.record_of(self.folder).read_text(encoding="utf-8")
        for line in map(json.loads, record.splitlines()):
            play = plays.setdefault(line["rollout"], Play(line["rollout"].rpartition("/")[0], line["task"]))
            if line["event"] == "step":
                play.actions.append(line["action"])
        return list(plays.values())

    @property
    def evaluated(self) -> list[Play]:
        """The rollouts of the first evaluation, which comes before any training: that of the initial student."""
        return [play for play in self.plays if play.task.startswith("test-")][: self.evaluations[0]["tasks"]]

    @property
    def explored(self) -> list[Play]:
        return [play for play in self.plays if play.task.startswith("train-")]

    def prompt(self, turn: Turn) -> str:
        """A prompt as text, with the marks of the chat template."""
        return self._tokenizer.decode(list(turn.prompt_ids))

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.config["student"]["model"])


class Lab:
    """Makes runs and plans of BASE with some values changed; none is made twice."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.models = folder, models
        self._runs: dict[tuple[str, ...], Run] = {}
        self._numbers = count()
        settings = BASE | {role: {"model": str(models / role)} for role in ("student", "teacher")}
        self.file = folder / "base.yaml"
        self.file.write_text(yaml.safe_dump(settings), encoding="utf-8")

    def run(self, *changes: str) -> Run:
        """`divopd train` with these values; a test that expects a refusal looks at `code`."""
        if changes not in self._runs:
            self._runs[changes] = self._train(self.folder / f"run-{next(self._numbers)}", changes)
        return self._runs[changes]

    def plan(self, *changes: str) -> str:
        """What `divopd train --dry-run` says, with the problems that it sees."""
        with recorded_in(self.folder / "plan"):  # a dry run plays, too
            return call(self._command(changes, "--dry-run"))[1]

    def _command(self, changes: tuple[str, ...], *more: str) -> list[str]:
        folders = {"models": self.models, "tests": Path(recording_rooms.__file__).parent}
        values = [Template(change).substitute(folders) for change in changes]
        return ["train", str(self.file), *more, *(word for value in values for word in ("--set", value))]

    def _train(self, folder: Path, changes: tuple[str, ...]) -> Run:
        with ExitStack() as stack:
            stack.enter_context(recorded_in(folder))
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.manual_seed(0)  # as in a process of its own
            passes = stack.enter_context(_watched_models())
            code, said = call(self._command(changes, "--out", str(folder)))
        return Run(folder, code, said, passes)


def call(command: list[str]) -> tuple[int, str]:
    """Run a command of `divopd` here: its exit code and all that it says."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(command)
    return code, said.getvalue()


@contextmanager
def recorded_in(run: Path) -> Iterator[None]:
    """Rooms write down what they are asked in the name of this run."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(recording_rooms.RUN, str(run))
        yield


@contextmanager
def _watched_models() -> Iterator[Passes]:
    """Note when models are at work, whoever calls them: torch tells it of every module."""
    passes = Passes()

    def note(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Embedding):
            passes.all.append(Pass(module.training, torch.get_num_threads()))
        elif isinstance(module, torch.nn.Linear) and module.training:
            passes.layers_trained.append(str(module))

    hook = register_module_forward_pre_hook(note)
    try:
        yield passes
    finally:
        hook.remove()
