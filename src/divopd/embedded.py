"""The embedded models: a tiny teacher and a tiny initial student, so that a run needs no download.

`embedded:teacher` and `embedded:student` in a configuration are those of the default environment and come with the
package. `embedded:ENV/teacher` and `embedded:ENV/student` are built on first use, with a progress bar, and kept in the
user's cache folder. `python -m divopd.embedded NAME FOLDER` builds any of them anew, in minutes on one core.

The student is trained like the teacher, from other random weights, and is then weakened on the rollouts of a policy
that slips: it is competent but weak, as a pretrained model with a poor policy is. It never sees the teacher's weights.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from divopd.errors import UnknownNameError

DEFAULT_ENVIRONMENT = "alfworld-small"
SHIPPED = Path(__file__).parent / "models" / "embedded"


@dataclass(frozen=True)
class Recipe:
    """Expert lessons for so many updates; a student is then weakened until its success rate falls to `weak_percent`."""

    environment: str
    seed: int
    updates: int
    weak_percent: float | None = None
    weak_updates: int = 60
    weak_plausible: float = 0.6


RECIPES = {
    f"{environment}/{role}": Recipe(environment, seed, updates, weak_percent)
    for environment, updates in {"alfworld-small": 2400, "webshop-small": 2400}.items()
    for role, seed, weak_percent in (("teacher", 0, None), ("student", 1, 20.0))
}


def embedded_model(name: str) -> Path:
    """The folder of an embedded model; one that is not shipped is built on first use and kept."""
    full = name if "/" in name else f"{DEFAULT_ENVIRONMENT}/{name}"
    if full not in RECIPES:
        raise UnknownNameError("embedded model", name, ["teacher", "student", *RECIPES])
    for folder in (SHIPPED / full, cache_folder() / full):
        if (folder / "config.json").is_file():
            return folder
    build(full, cache_folder() / full)
    return cache_folder() / full


def cache_folder() -> Path:
    """Where models that were built are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "divopd" / "embedded"


def build(name: str, folder: Path) -> float:
    """Train an embedded model by its recipe and save it whole or not at all; returns its success rate in percent."""
    from divopd.demonstrations import Slips
    from divopd.models.tiny import save_model
    from divopd.prompts import style_for
    from divopd.sft import Evaluations, Lessons, SftSettings, new_policy, teach

    recipe = RECIPES[name]
    style = style_for(recipe.environment, answer="terse", actions="unlisted")
    lessons = Lessons(recipe.environment, style, seed=recipe.seed)
    policy = new_policy(lessons, seed=recipe.seed)
    with _progress(name, recipe.updates) as report:
        settings = SftSettings(updates=recipe.updates, rollouts=8, learning_rate=3e-3, reading=1.0)
        last = teach(policy, lessons, settings, evaluations=Evaluations(every=600), report=report)
    if recipe.weak_percent is not None:
        weak = Lessons(
            recipe.environment, style, labels="weak", slips=Slips(plausible=recipe.weak_plausible), seed=recipe.seed
        )
        limit = recipe.weak_percent
        with _progress(f"{name}, weakened", recipe.weak_updates) as report:
            settings = SftSettings(updates=recipe.weak_updates, rollouts=8, learning_rate=3e-4)
            evaluations = Evaluations(every=5)
            last = teach(policy, weak, settings, evaluations=evaluations, wanted=lambda p: p <= limit, report=report)
    partial = folder.with_name(f".{folder.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    save_model(partial, policy.model, policy.tokenizer)
    partial.replace(folder)
    return last.percent


class _progress:
    """A bar on stderr."""

    def __init__(self, what: str, updates: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True))
        self._task = self._bar.add_task(f"building {what}", total=updates)

    def __enter__(self) -> Callable[[object], None]:
        self._bar.start()
        return lambda figures: self._bar.advance(self._task)

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()


if __name__ == "__main__":
    print(f"{sys.argv[2]}: success rate {build(sys.argv[1], Path(sys.argv[2])):.1f} %")
