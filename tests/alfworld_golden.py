"""Transcripts of generated games in the real alfworld package, for tests that have to do without it.

Made again, where the package is installed, with:  python tests/alfworld_golden.py
"""

import json
import lzma
import random
from pathlib import Path

from divopd.environments.alfworld import AlfworldEnvironment, Game, Games, PackageEnvironment, open_games
from divopd.environments.environment import Observation

GOLDEN = Path(__file__).parent / "data" / "alfworld_golden.jsonl.xz"
NOT_ALLOWED = (
    "",
    "dance",
    "go to narnia 1",
    "Look",
    "look around",
    "take mug 99 from fridge 1",
    "\x1b[2J",
    "look\nlook",
)


def random_action(allowed: list[str], rng: random.Random) -> str:
    """A random verb, then a random command with it: picking commands at random would mostly walk about."""
    if rng.random() < 0.05:
        return rng.choice(NOT_ALLOWED)
    verb = rng.choice(sorted({command.split()[0] for command in allowed}))
    action = rng.choice([command for command in allowed if command.split()[0] == verb])
    return f"  {action} " if rng.random() < 0.02 else action


def differences(ours: Observation, theirs: Observation) -> list[str]:
    """What two engines do not agree on, field by field."""
    fields = ("text", "allowed_actions", "done", "success", "reward", "valid")
    pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in fields]
    return [f"{name}: {mine!r} != {other!r}" for name, mine, other in pairs if mine != other]


def play(games: Games, task: str, package: PackageEnvironment, *, random_actions: int) -> list[tuple[str, Observation]]:
    """The walkthrough and then random actions in both engines, which must agree. What was done and seen."""
    native, rng = AlfworldEnvironment(games), random.Random(task)
    ours, theirs = native.reset(task), package.reset(task)
    assert not differences(ours, theirs), (task, "reset", differences(ours, theirs))
    walkthrough, done = list(games.game(task).walkthrough), [("", theirs)]
    for turn in range(len(walkthrough) + random_actions):
        action = walkthrough[turn] if turn < len(walkthrough) else random_action(theirs.allowed_actions or [], rng)
        ours, theirs = native.step(action), package.step(action)
        done.append((action, theirs))
        assert not differences(ours, theirs), (task, [action for action, _ in done], differences(ours, theirs))
        assert turn + 1 != len(walkthrough) or ours.success, (task, "the walkthrough does not win")
    return done


class OneGame:
    """A collection of one game."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def tasks(self, split: str) -> list[str]:
        return [self._game.id]

    def game(self, task: str) -> Game:
        return self._game


def read() -> list[tuple[Game, list[tuple[str, Observation]]]]:
    """The recorded games, each with the actions and observations of its transcript."""
    with lzma.open(GOLDEN, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [
        (Game(**record["game"]), [(action, Observation(*fields)) for action, *fields in record["done"]])
        for record in records
    ]


def record() -> None:
    lines = []
    for home in ("small", "large"):
        games = open_games(home)
        package = PackageEnvironment(games)
        for task in games.tasks("train")[:12]:
            game = games.game(task)
            done = play(games, task, package, random_actions=40)
            fields = ("text", "allowed_actions", "done", "success", "reward", "valid")
            rows = [[action, *(getattr(seen, name) for name in fields)] for action, seen in done]
            kept = {"id": game.id, "task": game.task, "problem": game.problem, "walkthrough": game.walkthrough}
            lines.append(json.dumps({"game": kept, "done": rows}))
            print(task, len(rows) - 1, flush=True)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(lzma.compress("\n".join(lines).encode()))


if __name__ == "__main__":
    record()
