"""Act in an environment: yourself, or let a script do it."""

import argparse
import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from divopd.errors import InputError
from divopd.report.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from divopd.environments import Environment, Observation

HELP = "Act in an environment in the terminal, or watch an expert or random actions."
EXAMPLE = "divopd play alfworld-small --policy expert"
_LEAVE, _LIST = (":quit", ":q"), ":actions"

Policy = Callable[["Observation"], str | None]  # None: the player leaves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environment", metavar="ENV", help="a name that `divopd envs` lists, or FILE.py:CLASS")
    parser.add_argument("task", nargs="?", metavar="TASK", help="default: one of the evaluation tasks, by the seed")
    parser.add_argument("--policy", choices=("expert", "random"), help="who acts (default: you)")
    parser.add_argument("--web", action="store_true", help="shop in a browser instead (WebShop only)")
    parser.add_argument("--seed", type=int, default=0, help="of the random policy and of the choice of a task")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the environment")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from divopd.environments import find_entry, make_environment, tasks

    entry, settings = find_entry(args.environment), read_settings(args.set)
    if args.policy == "random" and args.environment == "scienceworld":
        settings.setdefault("actions", "listed")  # it lists them only on demand, being slow at it
    task = args.task
    if task is None:
        listed = tasks(args.environment, entry.evaluation_split, **settings)
        task = listed[args.seed % len(listed)]
    environment = make_environment(args.environment, **settings)
    if args.web:
        return shop_in_a_browser(environment, task)
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    try:
        play(environment, task, make_policy(args, environment, console), horizon=entry.horizon, console=console)
    finally:
        getattr(environment, "close", lambda: None)()
    return 0


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
