"""The card of an exported model: what it is, how it was made and what it reached, in the words of its run."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from divopd.config import Config
from divopd.errors import StoreError
from divopd.methods import METHODS
from divopd.models.hub import HUB_NAME
from divopd.models.model_files import PREFIX
from divopd.printable import printable
from divopd.records import EvaluationRecord, UpdateRecord
from divopd.run.folder import RunFolder
from divopd.store import Store

PACKAGES = ("divopd", "torch", "transformers")  # whose versions are worth a word


@dataclass(frozen=True)
class Made:
    """What a run recorded about the making of a policy version. `origin` is the run's card; empty if it has none."""

    updates: Mapping[int, UpdateRecord]
    evaluations: Mapping[int, EvaluationRecord]
    origin: Mapping[str, Any]


def read_made(run: RunFolder, *, version: int) -> Made:
    """The records up to a version; a run without a store or card has none."""
    updates: dict[int, UpdateRecord] = {}
    evaluations: dict[int, EvaluationRecord] = {}
    try:
        with Store.open_read_only(run.path) as store:
            updates = store.update_records(last=version - 1) if version else {}
            evaluations = {number: one for number, one in store.evaluations().items() if number <= version}
    except StoreError:
        pass  # a folder with nothing but weights: the card says that nothing is known
    try:
        origin = json.loads(run.card.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        origin = {}
    return Made(updates, evaluations, origin if isinstance(origin, dict) else {})


def model_card(config: Config, made: Made, *, name: str, version: int) -> str:
    """The card as Markdown with the header that model hubs read."""
    head = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    head["tags"] = ["divopd", "on-policy-distillation", "agent"]  # pyright: ignore[reportArgumentType]
    if hub := HUB_NAME.fullmatch(config.student.model):
        head["base_model"] = hub["repository"]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {_plain(name)}, version {version}",
        f"A student that learned by on-policy distillation to act in {_code(_environment(config))}: it acted itself, "
        "and a frozen teacher scored every token of its turns.",
        *_section("How it was made", _method(config, made, version=version)),
        *_section("What it learned from", _data(config, made)),
        *_section("What it reached", _figures(made, version=version)),
        *_section("How to use it", _use(config)),
        "The licence is that of the student's first model; see there.",
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)]


def _method(config: Config, made: Made, *, version: int) -> list[str]:
    method = METHODS[config.method]
    what = (inspect.getdoc(method.composer) or "").splitlines()[0].rstrip(".")
    composer, learner, lora = config.composer, config.learner, config.student.lora
    adapted = "all weights" if lora is None else f"adapters (LoRA, rank {lora.rank}, alpha {lora.alpha:g}), merged here"
    code = made.origin.get("code")
    commit = code.get("commit") if isinstance(code, dict) else None
    changed = ", with changed sources" if isinstance(code, dict) and code.get("changed") else ""
    versions = made.origin.get("versions")
    known = (
        {name: versions[name] for name in ("divopd", "torch", "transformers") if name in versions} if versions else {}
    )
    return [
        f"method: {_code(config.method)} ({what}; {_extra(method.explorers)}batches of {composer.batch_size} turns, "
        f"seed {config.seed})",
        f"student at first: {_code(_model(config.student.model))}; teacher: {_code(_teacher(config))}",
        f"{version} updates of {adapted}, learning rate {learner.lr:g}",
        f"divopd at commit {_code(commit)}{changed}" if commit else "the commit of divopd was not recorded",
        "packages: " + (", ".join(f"{name} {_plain(str(one))}" for name, one in known.items()) or "not recorded"),
    ]


def _extra(explorers: str) -> str:
    return f"{explorers}; " if explorers else ""


def _data(config: Config, made: Made) -> list[str]:
    environment = config.environment
    settings = f" with {_code(json.dumps(environment.settings))}" if environment.settings else ""
    lines = [
        f"its own rollouts in {_code(_environment(config))}{settings}, split {_code(environment.train_split)}, at most "
        f"{environment.horizon} turns each; no dataset"
    ]
    if made.updates:
        last = made.updates[max(made.updates)]
        lines.append(
            f"{last.queue.rollouts_put:,} rollouts with {last.queue.turns_put:,} turns arrived; "
            f"{sum(one.batch.rows for one in made.updates.values()):,} turns were trained, "
            f"{last.spent.trained_tokens:,} tokens with their prompts"
        )
    return lines


def _figures(made: Made, *, version: int) -> list[str]:
    if not made.evaluations:
        return ["the run has recorded no evaluation"]
    shown = {"at first": min(made.evaluations), "at most": max(made.evaluations, key=lambda n: _rate(made, n))}
    own = made.evaluations.get(version)
    lines = [f"success rate {when}: {_rate(made, n):.1f} % (version {n})" for when, n in shown.items() if n != version]
    if own is None:
        return [*lines, "this version itself was not evaluated by the run; `divopd evaluate` plays it"]
    kinds = ", ".join(f"{_code(kind)} {rate:.1f} %" for kind, rate in own.by_kind.items())
    one = f"**success rate of this version: {own.success_rate:.1f} %** on {own.tasks} tasks of the evaluation split, "
    return [f"{one}{own.turns:.1f} turns a rollout" + (f"; {kinds}" if len(own.by_kind) > 1 else ""), *lines]


def _rate(made: Made, version: int) -> float:
    return made.evaluations[version].success_rate


def _use(config: Config) -> list[str]:
    style = config.prompts
    return [
        f"in the chat template of its tokenizer; answers are {_code(style.answer)}, allowed actions are "
        f"{style.actions} in the prompt, of the history it was shown {_code(str(style.history))}",
        "system text: " + (_code(style.system) if style.system else "none"),
        f"`divopd play {_environment(config)} --policy FOLDER` shows it at work, `divopd evaluate FOLDER` counts",
    ]


def _environment(config: Config) -> str:
    """A user's file by its last name, too."""
    return config.environment.name.rpartition("/")[2]


def _model(model: str) -> str:
    """A folder by its last name: where it lay is nobody's business."""
    return model if model.startswith(PREFIX) or HUB_NAME.fullmatch(model) else Path(model).name


def _teacher(config: Config) -> str:
    others = f" and {len(config.teacher.by_task)} more for some tasks" if config.teacher.by_task else ""
    return f"{_model(config.teacher.model)}{others}"


def _plain(text: str) -> str:
    """On one line, and nothing that steers a terminal or begins markup."""
    return " ".join(printable(text).split()).replace("<", "‹").replace("[", "(").replace("]", ")")


def _code(text: str) -> str:
    return f"`{' '.join(printable(text).split()).replace('`', chr(39))}`"
