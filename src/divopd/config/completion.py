"""What a configuration leaves open and another of its sections decides: the environment's values, the form of answers.

It also says who decided, for `divopd config`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from divopd.config.files import Place
from divopd.environments import EnvironmentEntry, find_entry
from divopd.errors import InputError
from divopd.models.model_files import model_folder
from divopd.models.taught import FILE, Taught, read_taught
from divopd.prompts import PromptStyle, style_for
from divopd.prompts.formats import FORMAT_SETTINGS


class Completed(NamedTuple):
    """A configuration with everything in it that has no fixed default, and who filled in each value."""

    data: dict[Any, Any]
    sources: dict[Place, str]


def complete(given: Mapping[Any, Any], *, updates: int, student: str) -> Completed:
    """Fill in what depends on other sections. What is wrong is left as it is: validation tells.

    `updates` and `student` are the defaults of learner.updates and of student.model.
    """
    data, sources = dict(given), {}

    def fill(name: str, values: Mapping[str, Any], by: str) -> None:
        section = _section(data, name)
        for key, value in values.items():
            if section.get(key) is None:
                section[key] = value
                sources[name, key] = by

    environment = _section(data, "environment")
    if environment.get("command") is not None:
        _settle_program(environment)
    name = environment.setdefault("name", "alfworld-small")
    entry = _entry_or_none(name)
    if entry is not None:
        table = {"train_split": "train", "evaluation_split": entry.evaluation_split, "horizon": entry.horizon}
        fill("environment", table, f"environment {name}")
        fill("evaluation", {"tasks": entry.evaluation_tasks}, f"environment {name}")
    prompts = _section(data, "prompts")
    asked = str(prompts.get("format"))  # a format that is asked for goes first
    fill("prompts", FORMAT_SETTINGS.get(asked, {}), f"prompts.format {asked}")
    taught = _taught_student(data.get("student", {}), str(name), default=student)
    if taught is not None:
        fill("prompts", {"answer": taught.answer, "actions": taught.actions}, f"the student's {FILE}")
    answer = "terse" if _section(data, "prompts").get("answer") == "terse" else "think"
    usual = PromptStyle()
    for key, value in asdict(style_for(str(name), answer=answer)).items():
        fill("prompts", {key: value}, "default" if value == getattr(usual, key) else f"environment {name}")
    composer = _section(data, "composer")
    for shared, place in {"method": "method", "seed": "seed", "total_updates": "learner.updates"}.items():
        if shared in composer:
            raise ValueError(f"composer.{shared} is {composer[shared]!r}; expected nothing there: set {place} instead")
    learner = data.get("learner", {})
    total = learner.get("updates", updates) if isinstance(learner, Mapping) else updates
    composer |= {"method": data.get("method", "divopd"), "seed": data.get("seed", 0), "total_updates": total}
    return Completed(data, sources)


def _settle_program(environment: dict[Any, Any]) -> None:
    """A command makes the environment a program: what its source takes are settings like any other's."""
    environment.setdefault("name", "program")
    command = environment["command"]
    own = {
        "command": command if isinstance(command, str) else list(command) if isinstance(command, list | tuple) else [],
        "tasks_by_split": environment.get("tasks") or {},
    }
    given = environment.get("settings")
    environment["settings"] = (dict(given) if isinstance(given, Mapping) else {}) | own


def _taught_student(student: object, environment: str, *, default: str) -> Taught | None:
    """What the student was taught. The default one counts only where it was taught: elsewhere it is a stand-in."""
    named = student.get("model") if isinstance(student, Mapping) else None
    try:
        folder = model_folder(str(named or default))
    except InputError:
        return None
    try:
        taught = read_taught(folder)
    except InputError as error:
        raise ValueError(str(error)) from None
    return taught if named or (taught and taught.environment == environment) else None


def _section(data: dict[Any, Any], name: str) -> dict[Any, Any]:
    """A copy of a section that may be filled; one that is no mapping is left for validation to refuse."""
    given = data.get(name, {})
    if not isinstance(given, Mapping):
        return {}
    data[name] = dict(given)
    return data[name]


def _entry_or_none(name: object) -> EnvironmentEntry | None:
    try:
        return find_entry(name) if isinstance(name, str) else None
    except InputError:
        return None
