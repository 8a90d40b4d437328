"""Act in an environment: yourself, or let a script do it."""

import argparse
import json
import random
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from divopd.errors import InputError
from divopd.printable import printable, tell

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from divopd.config import Config
    from divopd.environments import Environment, Observation

HELP = "Act in an environment in the terminal, or watch an expert, a model, a run's student or random actions."
EXAMPLE = """divopd play alfworld-small --policy expert
  divopd play alfworld-small --policy embedded:teacher
  divopd play alfworld-small --policy runs/mine@50
  divopd play "command node agent.js" --set tasks=test.jsonl --policy models/small-llm"""
SCRIPTS = ("expert", "random")
_LEAVE, _LIST = (":quit", ":q"), ":actions"

Policy = Callable[["Observation"], str | None]  # None: the player leaves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "environment",
        metavar="ENV",
        help='a name that `divopd envs` lists, FILE.py:CLASS, or "command WORDS": an agent program',
    )
    parser.add_argument("task", nargs="?", metavar="TASK", help="default: one of the evaluation tasks, by the seed")
    parser.add_argument(
        "--policy",
        metavar="expert|random|RUN[@VERSION]|MODEL",
        help="who acts: a script, a run's student or a model's folder, as in an evaluation (default: you)",
    )
    as_taught = "of a model's folder (default: as `divopd sft` taught it"
    parser.add_argument("--answer", choices=("think", "terse"), help=f"form of answers {as_taught}, else think)")
    parser.add_argument("--actions", choices=("listed", "unlisted"), help=f"those allowed, in the prompt {as_taught})")
    parser.add_argument("--web", action="store_true", help="shop in a browser instead (WebShop only)")
    parser.add_argument("--seed", type=int, default=0, help="chooses a task; with TASK, the draws of a policy")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the environment")


def run(args: argparse.Namespace) -> int:
    from divopd.environments import find_entry, make_environment, tasks
    from divopd.environments.programs.source import COMMAND

    if args.policy not in (None, *SCRIPTS):
        return watch_model(args)
    if args.answer or args.actions:
        raise InputError("--answer and --actions are of a model; name it with --policy MODEL")
    if args.environment.startswith(COMMAND):
        raise InputError("an agent program asks a model itself; name one with --policy MODEL")
    entry, settings = find_entry(args.environment), read_settings(args.set)
    if args.policy == "random" and args.environment == "scienceworld":
        settings.setdefault("actions", "listed")  # it lists them only on demand, being slow at it
    task = args.task
    if task is None:
        task = choose_task(tasks(args.environment, entry.evaluation_split, **settings), args.seed)
    environment = make_environment(args.environment, **settings)
    if args.web:
        return shop_in_a_browser(environment, task)
    console = _console()
    try:
        play(environment, task, make_policy(args, environment, console), horizon=entry.horizon, console=console)
    finally:
        getattr(environment, "close", lambda: None)()
    return 0


def watch_model(args: argparse.Namespace) -> int:
    """A model plays as it does in an evaluation: in the same form, with the same draws for the same task."""
    import torch

    from divopd.environments import tasks
    from divopd.environments.pool import environments_in, open_pool
    from divopd.explorer import Acting, Start
    from divopd.pipeline.named_models import load_policy
    from divopd.plan.dry_run import taught_otherwise
    from divopd.program_rollout import programs_of
    from divopd.prompts import Codec
    from divopd.report.acting import show_rollout

    if args.web:
        raise InputError("--web is for a person; leave --policy out to shop in a browser")
    config, weights = _played_as(args)
    part = config.environment
    listed = tasks(part.name, part.evaluation_split, **part.settings)
    task = choose_task(listed, args.seed) if args.task is None else args.task
    for note in taught_otherwise(config, {"model": config.student.model}):
        tell(note)
    torch.set_num_threads(config.threads)
    policy = load_policy(config, weights)
    codec = Codec(policy.tokenizer, template=config.prompts.template)
    acting = Acting(
        config.prompts,
        codec,
        temperature=config.evaluation.temperature,
        max_response_tokens=config.explorer.max_response_tokens,
        seed=config.seed + (0 if args.task is None else args.seed),
        program=programs_of(config, codec),
    )
    start = Start(listed.index(task) if task in listed else 0, task, part.horizon)
    pool = open_pool(part.name, part.settings, size=1, workers=0, timeout_s=part.timeout_s)
    with closing(pool):
        [environment] = environments_in(pool)
        try:
            played = show_rollout(start, acting, policy=policy, environment=environment, console=_console())
        finally:
            getattr(environment, "close", lambda: None)()
    return 0 if played.failure is None else 1


def _played_as(args: argparse.Namespace) -> tuple["Config", "Path | None"]:
    """The configuration and the weights of who is named; in another environment than a run's, with its defaults."""
    from divopd.environments import find_entry
    from divopd.environments.programs.source import COMMAND
    from divopd.pipeline.named_models import (
        config_of_model,
        find_weights,
        is_run,
        load_config_of_run,
        split_version,
    )

    if args.environment.startswith(COMMAND):
        return _of_program(args)
    entry, settings, weights = find_entry(args.environment), read_settings(args.set), None
    if is_run(args.policy):
        run, version = split_version(args.policy)
        if args.answer or args.actions:
            raise InputError(f"{run.path} is a run and says its form of answers; leave --answer and --actions out")
        config, weights = load_config_of_run(run), find_weights(run, version)
    else:
        form = {"answer": args.answer, "actions": args.actions}
        config = config_of_model(args.policy, environment=args.environment, form=form)
    own = {} if _end(config.environment.name) == _end(args.environment) else {
        "settings": {},
        "evaluation_split": entry.evaluation_split,
        "horizon": entry.horizon,
    }  # fmt: skip
    part = config.environment.model_copy(update=own)
    part = part.model_copy(update={"name": args.environment, "settings": part.settings | settings})
    return config.model_copy(update={"environment": part}), weights


def _of_program(args: argparse.Namespace) -> tuple["Config", "Path | None"]:
    """A program against a model, or against a run's student; `--set tasks=FILE` names its tasks."""
    from divopd.config import Config
    from divopd.environments.programs.source import command_of
    from divopd.pipeline.named_models import check_model, find_weights, is_run, load_config_of_run, split_version

    told = read_settings(args.set)
    file = told.pop("tasks", None)
    if not isinstance(file, str):
        raise InputError("--set tasks=FILE.jsonl is missing; expected a file with one task a line, each with an id")
    environment = {"command": command_of(args.environment), "tasks": {"test": file}, **told}
    try:
        if not is_run(args.policy):
            check_model(args.policy)
            student = {"model": args.policy}
            return Config.model_validate({"environment": {"tools": "plain", **environment}, "student": student}), None
        run, version = split_version(args.policy)
        trained, weights = load_config_of_run(run), find_weights(run, version)
        changed = Config.model_validate({"environment": environment, "student": {"model": trained.student.model}})
        return trained.model_copy(update={"environment": changed.environment}), weights
    except ValueError as error:  # pydantic's, of many lines
        raise InputError(f"{args.environment!r}: {str(error).splitlines()[-2].strip()}") from None


def _end(name: str) -> str:
    """A user's file counts by its name, wherever it lies."""
    return name.rpartition("/")[2]


def choose_task(listed: list[str], seed: int) -> str:
    """One of the evaluation tasks by a seed."""
    if not listed:
        raise InputError("the environment lists no evaluation task; name a TASK")
    return listed[seed % len(listed)]


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def play(environment: "Environment", task: str, policy: Policy, *, horizon: int, console: "Console") -> None:
    """One rollout on the console, until it is done, the horizon is reached or the player leaves."""
    observation = environment.reset(task)
    _show(console, f"task {task}", observation)
    total, turn = observation.reward, 0
    while not observation.done and turn < horizon:
        action = policy(observation)
        if action is None:
            break
        turn += 1
        observation = environment.step(action)
        total += observation.reward
        _show(console, f"{turn} > {action}", observation)
    ending = "success" if observation.success else "not solved"
    console.print(f"{ending} after {turn} of {horizon} turns, reward {total:g}", style="bold")


def shop_in_a_browser(environment: "Environment", task: str) -> int:
    """Serve the task as a page on this machine until Ctrl-C."""
    from divopd.environments.webshop import WebShop
    from divopd.environments.webshop.web import serve

    if not isinstance(environment, WebShop):
        raise InputError("--web is for WebShop; other environments are played in the terminal")
    serve(environment.shop, [task], layout=environment.layout)
    return 0


def make_policy(args: argparse.Namespace, environment: "Environment", console: "Console") -> Policy:
    """Who acts: the person at the keyboard, the environment's expert, or chance."""
    if args.policy == "expert":
        return _expert(args.environment, environment)
    return _random(args.seed) if args.policy == "random" else _person(console)


def _expert(name: str, environment: "Environment") -> Policy:
    from divopd.environments import make_expert

    expert = make_expert(name, environment)
    started = False

    def act(observation: "Observation") -> str:
        nonlocal started
        if not started:
            expert.reset(observation)
            started = True
        return expert.act(observation)

    return act


def _random(seed: int) -> Policy:
    draws = random.Random(seed)

    def act(observation: "Observation") -> str:
        if not observation.allowed_actions:
            raise InputError("this environment does not list its allowed actions, so none can be drawn at random")
        return draws.choice(observation.allowed_actions)

    return act


def _person(console: "Console") -> Policy:
    console.print(f"{_LIST} lists the allowed actions, {_LEAVE[0]} leaves", style="dim")

    def act(observation: "Observation") -> str | None:
        while True:
            try:
                line = console.input("> ").strip()
            except EOFError:
                return None
            if line in _LEAVE:
                return None
            if line == _LIST:
                listed = observation.allowed_actions
                text = "the environment does not list them" if listed is None else "\n".join(listed)
                console.print(printable(text))
            elif line:
                return line

    return act


def _show(console: "Console", heading: str, observation: "Observation") -> None:
    console.print(printable(heading), style="bold")
    if not observation.valid:
        console.print("(not understood)", style="yellow")
    console.print(printable(observation.text))


def read_settings(pairs: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs; a value that is JSON is read as such, any other is text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair!r}: expected KEY=VALUE")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return settings
