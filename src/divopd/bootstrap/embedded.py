"""The embedded models: for each of three environments a tiny teacher and a tiny initial student; nothing is downloaded.

`embedded:ENV/teacher` and `embedded:ENV/student` name them in a configuration; without ENV, those of the default
environment are meant. `python -m divopd.bootstrap.embedded ENV/ROLE FOLDER` makes one anew, in ten to forty minutes of
a core; another machine may round differently and get other weights.

The student is trained like the teacher, from other random weights, and is then weakened on the rollouts of a policy
that slips: it is competent but weak, as a pretrained model with a poor policy is. It never sees the teacher's weights.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.models.model_files import PREFIX, SHIPPED

if TYPE_CHECKING:
    from divopd.bootstrap.sft import Lessons
    from divopd.models.transformers_policy import TransformersPolicy

__all__ = ["PREFIX", "RECIPES", "SHIPPED", "Recipe", "build"]


@dataclass(frozen=True)
class Recipe:
    """Expert lessons in stages of so many updates at such a learning rate.

    A student is then weakened until its success rate falls to `weak_percent`.
    """

    environment: str
    seed: int
    stages: tuple[tuple[int, float], ...] = ((2400, 3e-3),)
    weak_percent: float | None = None
    weak_updates: int = 60
    weak_plausible: float = 0.6


RECIPES = {
    "alfworld-small/teacher": Recipe("alfworld-small", seed=1),
    "alfworld-small/student": Recipe("alfworld-small", seed=0, stages=((2400, 3e-3), (1000, 2e-3)), weak_percent=22.0),
    "webshop-small/teacher": Recipe("webshop-small", seed=1, stages=((1800, 3e-3),)),
    "webshop-small/student": Recipe("webshop-small", seed=0, weak_percent=25.0),
    "scienceworld-short/teacher": Recipe("scienceworld-short", seed=0, stages=((2000, 3e-3),)),
    "scienceworld-short/student": Recipe("scienceworld-short", seed=1, stages=((1200, 3e-3),), weak_percent=25.0),
}


def build(name: str, folder: Path) -> float:
    """Train an embedded model by its recipe and save it whole or not at all; returns its success rate in percent."""
    import torch

    from divopd.bootstrap.sft import save_taught_model

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # another number would round differently
    try:
        policy, lessons, percent = _train(name)
    finally:
        torch.set_num_threads(threads)
    partial = folder.with_name(f".{folder.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    save_taught_model(partial, policy, lessons)
    partial.replace(folder)
    return percent


def _train(name: str) -> "tuple[TransformersPolicy, Lessons, float]":
    from divopd.bootstrap.demonstrations import Slips
    from divopd.bootstrap.sft import Evaluations, Lessons, SftSettings, new_policy, teach
    from divopd.evaluation import Evaluation
    from divopd.prompts import style_for

    recipe = RECIPES[name]
    style = style_for(recipe.environment, answer="terse", actions="unlisted")
    lessons = Lessons(recipe.environment, style, seed=recipe.seed)
    policy = new_policy(lessons, seed=recipe.seed)
    last = Evaluation(())
    for stage, (updates, rate) in enumerate(recipe.stages):
        with _progress(f"{name}, stage {stage + 1} of {len(recipe.stages)}", updates) as report:
            settings = SftSettings(updates=updates, rollouts=8, learning_rate=rate, reading=1.0)
            last = teach(policy, lessons, settings, evaluations=Evaluations(every=600), report=report)
    if recipe.weak_percent is not None:
        weak = Lessons(
            recipe.environment, style, labels="weak", slips=Slips(plausible=recipe.weak_plausible), seed=recipe.seed
        )
        limit = recipe.weak_percent
        with _progress(f"{name}, weakened", recipe.weak_updates) as report:
            settings = SftSettings(updates=recipe.weak_updates, rollouts=8, learning_rate=3e-4)
            evaluations = Evaluations(every=10)
            last = teach(policy, weak, settings, evaluations=evaluations, wanted=lambda p: p <= limit, report=report)
    return policy, lessons, last.percent


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
