"""What `divopd init` writes: a configuration for an environment, a student and a teacher, and the commands that follow.

Deciding reads models and environments and writes nothing; a wrong name is an InputError before the first file is made.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from divopd.config import Config
from divopd.config.files import yaml_word
from divopd.config.reference import config_keys
from divopd.environments import ENVIRONMENTS, find_entry, make_environment, make_expert, missing_parts, skeleton, tasks
from divopd.environments.programs.source import COMMAND, command_of
from divopd.errors import InputError, UnknownNameError
from divopd.models.hub import is_hub_name
from divopd.models.model_files import DEFAULT_ENVIRONMENT, ModelFacts, hub_advice, model_folder, read_model_facts
from divopd.models.openai_policy import OpenAIPolicy
from divopd.models.taught import Taught, differences, read_taught
from divopd.pipeline.vocabularies import is_server

EXPERT = "expert"  # a teacher that is still to be made: of the student, by lessons of the environment's expert
BUILTIN = "builtin"
TINY = 10_000_000  # parameters: below, a model knows one environment by heart and answers in bare actions
WIDTH = 120
TEACHER_LESSONS = ("--updates", "400", "--until", "90", "--evaluate-every", "25")
# a student that could do it once and was led astray gets better in minutes; one that never learned it does not
NOVICE_LESSONS = (
    *("--labels", "weak", "--plausible", "0", "--random", "0.85", "--repeat", "0", "--learning-rate", "3e-4"),
    *("--updates", "60", "--until", "30", "--evaluate-every", "2", "--seed", "1"),
)


@dataclass(frozen=True)
class Wish:
    """What a user wants to train, in the user's words; `teacher_name` is how a server calls its model."""

    environment: str
    student: str
    teacher: str
    out: Path
    teacher_name: str | None = None


@dataclass(frozen=True)
class Start:
    """Files by path, none of which is there yet, and the next three commands, each after a line on what it does."""

    files: dict[Path, str]
    commands: list[tuple[str, str]]


@dataclass(frozen=True)
class World:
    """The environment of a wish. `source` is the text of a file that is still to be written."""

    name: str
    settings: dict[str, Any]
    horizon: int
    evaluation_tasks: int
    file: Path | None = None
    source: str = ""
    program: dict[str, Any] | None = None  # the lines of an agent program


def plan_start(wish: Wish) -> Start:
    """Decide what is written; nothing is made yet."""
    world = _world(wish.environment)
    facts, taught = _model("--student", wish.student)
    teacher = _teacher(wish, world)
    form = _form(world, facts, taught)
    novice = _is_novice(wish, world, facts, taught)
    student = str(wish.out / "student") if novice else wish.student
    settings = _settings(student, world, facts, form, teacher)
    text = _as_yaml(settings, wish)
    Config.model_validate(yaml.safe_load(text))  # what is written can be read
    config = wish.out / "train.yaml"
    files = {config: text} | ({world.file: world.source} if world.file else {})
    for file in files:
        if file.exists():
            raise InputError(f"{file} exists; choose another --out, or move it away")
    return Start(files, _commands(wish, world, form, config, novice=novice))


# ── the environment ───────────────────────────────────────────────────────────────────────────────────────────────


def _program(asked: str) -> World:
    """`command WORDS`: an agent program; its tasks are expected in train.jsonl and test.jsonl."""
    command = command_of(asked)
    if not command:
        raise InputError(f"--environment {asked!r}: no words after command; expected such as 'command node agent.js'")
    files = {split: f"{split}.jsonl" for split in ("train", "test")}
    lines = {"command": command, "tasks": files, "tools": "template", "timeout_s": 900}
    entry = find_entry("program")
    return World("program", {}, entry.horizon, entry.evaluation_tasks, program=lines)


def _world(asked: str) -> World:
    if asked.startswith(COMMAND):
        return _program(asked)
    name = DEFAULT_ENVIRONMENT if asked == BUILTIN else asked
    settings: dict[str, Any] = {}
    if name.startswith("gym:"):
        name, settings = "gym", {"id": name.removeprefix("gym:")}
    file, _, cls = name.rpartition(":")
    if file.endswith(".py") and not Path(file).exists():
        if not cls.isidentifier():
            raise InputError(f"--environment {asked}: {cls!r} is no name of a class; expected FILE.py:Class")
        source = Path(skeleton.__file__).read_text(encoding="utf-8")
        source = source.replace("FILE.py", file).replace("Skeleton", cls)
        return World(name, {}, 12, len(skeleton.Skeleton.tasks("test")), Path(file), source)
    if ":" not in name and name not in ENVIRONMENTS:
        raise UnknownNameError("environment", asked, [BUILTIN, *ENVIRONMENTS, "gym:ID", "FILE.py:CLASS"])
    entry = find_entry(name)
    if missing := missing_parts(name):
        raise InputError(f"--environment {asked}: missing {', '.join(missing)}; {entry.install}")
    make_environment(name, **settings)  # what is wrong with it is said now
    found = tasks(name, entry.evaluation_split, **settings)
    if not found:
        raise InputError(f"--environment {asked}: the split {entry.evaluation_split} has no tasks; expected some")
    return World(name, settings, entry.horizon, min(len(found), entry.evaluation_tasks))


# ── the models ────────────────────────────────────────────────────────────────────────────────────────────────────


def _model(option: str, model: str) -> tuple[ModelFacts | None, Taught | None]:
    """What its folder says; nothing of a model of the Hub that was not downloaded yet."""
    if is_hub_name(model) and not model_folder(model).exists():
        return None, None
    folder = model_folder(model)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{option} {model}: no model there; expected a folder with config.json and safetensors files, "
            f"embedded:NAME or owner/name@revision{hub_advice(model)}"
        )
    return read_model_facts(folder), read_taught(folder)


def _teacher(wish: Wish, world: World) -> dict[str, Any]:
    """The section `teacher` of the configuration."""
    if wish.teacher == EXPERT:
        if world.program is not None:
            raise InputError(
                "--teacher expert: a program brings no expert; expected a model or the address of a server"
            )
        if not world.file:
            make_expert(world.name, make_environment(world.name, **world.settings))
        return {"model": str(wish.out / "teacher")}
    if not is_server(wish.teacher):
        _model("--teacher", wish.teacher)
        return {"model": wish.teacher}
    served = OpenAIPolicy(wish.teacher, model=wish.teacher_name, timeout_s=10.0)
    return {"model": wish.teacher_name or served.model, "url": wish.teacher}


def _form(world: World, facts: ModelFacts | None, taught: Taught | None) -> Taught:
    """As the student was taught; else bare actions for a tiny model, thoughts and a list of actions for a large one."""
    if taught is not None:
        return Taught(world.name, taught.answer, taught.actions)
    tiny = facts is not None and facts.parameters < TINY
    return Taught(world.name, "terse", "unlisted") if tiny else Taught(world.name, "think", "listed")


def _is_novice(wish: Wish, world: World, facts: ModelFacts | None, taught: Taught | None) -> bool:
    """Whether a student must be made first: a tiny model that never was in this environment says nothing there that
    could be trained. It becomes a copy of the teacher that has learned bad habits."""
    tiny = facts is not None and facts.parameters < TINY
    return (
        tiny and wish.teacher == EXPERT and (taught is None or bool(differences(taught, _form(world, facts, taught))))
    )


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(
    student: str, world: World, facts: ModelFacts | None, form: Taught, teacher: dict[str, Any]
) -> dict[str, Any]:
    """The keys that a user will want to see and change."""
    tiny = facts is not None and facts.parameters < TINY
    billions = facts is None or facts.parameters >= 1_000_000_000
    updates = 60 if tiny else 250
    response = 32 if form.answer == "terse" else 512
    context = (facts.context_length if facts else None) or 8192
    return {
        "method": "divopd",
        "clock": "simulated",
        "environment": _environment(world),
        "prompts": ({} if world.program else {"answer": form.answer, "actions": form.actions})
        | {"max_prompt_tokens": min(2048 if tiny else 4096, context - response)},
        "student": {"model": student, "device": "cpu"},
        "teacher": teacher,
        "composer": {"batch_size": 32 if tiny else 64, "cap": 4},
        "learner": {"updates": updates, "lr": 3e-5 if tiny else 1e-6 if billions else 1e-5},
        "explorer": {"rollouts_in_flight": 16, "max_response_tokens": response},
        "evaluation": {"every": max(1, updates // 25), "tasks": world.evaluation_tasks},
    }


def _environment(world: World) -> dict[str, Any]:
    if world.program is not None:
        return world.program | {"horizon": world.horizon}
    return {"name": world.name, "horizon": world.horizon} | ({"settings": world.settings} if world.settings else {})


def _as_yaml(settings: dict[str, Any], wish: Wish) -> str:
    """A comment of each key says what it means, in the words of `divopd config`."""
    meanings = {key.name: key.meaning for key in config_keys()}
    lines = [
        f"# Written by divopd init for {wish.environment}, student {wish.student}, teacher {wish.teacher}.",
        "# Paths are relative to the folder from which you run divopd. Every other key, its default and its meaning:",
        "# divopd config",
    ]
    for name, value in settings.items():
        if not isinstance(value, dict):
            lines.append(f"{name}: {yaml_word(value)}  # {meanings[name]}")
            continue
        lines += ["", f"{name}:"]
        for key, inner in value.items():
            said, why = f"  {key}: {yaml_word(inner)}", meanings[f"{name}.{key}"]
            fits = len(said) + len(why) + 4 <= WIDTH
            lines += [f"{said}  # {why}"] if fits else [f"  # {why}", said]
    return "\n".join(lines) + "\n"


def _commands(wish: Wish, world: World, form: Taught, config: Path, *, novice: bool) -> list[tuple[str, str]]:
    """Look before it costs anything, or make the models first; then train; a run writes its own page at its end."""
    run, made = str(wish.out / "run"), str(wish.out / "teacher")
    lessons = ["--answer", form.answer, "--actions", form.actions, "--out", made, *TEACHER_LESSONS]
    teacher = ["sft", world.name, "--from", wish.student, *lessons]
    student = ["sft", world.name, "--from", made, "--out", str(wish.out / "student"), *NOVICE_LESSONS]
    train = ["train", str(config), "--out", run]
    named = {
        "check everything, and train nothing": ["train", str(config), "--dry-run"],
        "a teacher: the student's model after lessons of the expert": teacher,
        "a student with room to improve: the teacher's model after lessons of a player that mostly errs": student,
        "the student learns from the teacher; the last line names the page with the results": train,
        "the page once more, where you want it": ["report", run, "--out", str(wish.out / "report.html")],
    }
    look, teach, weaken, learn, report = ((why, shlex.join(["divopd", *command])) for why, command in named.items())
    if novice:
        return [teach, weaken, learn]
    return [teach, learn, report] if wish.teacher == EXPERT else [look, learn, report]
