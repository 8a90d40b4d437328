"""`divopd sft`: make a teacher or an initial student by supervised fine-tuning."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import InputError

if TYPE_CHECKING:
    from divopd.bootstrap.sft import Lessons
    from divopd.models.transformers_policy import TransformersPolicy

HELP = "Fine-tune a model on rollouts of an environment's expert (a teacher), or of a weak policy (a weak student)."
EXAMPLE = """divopd sft alfworld-small --out teacher --until 90
  divopd sft alfworld-small --out capable --seed 1 --until 90
  divopd sft alfworld-small --out student --from capable --labels weak --plausible 0.7 --until 20 --evaluate-every 10"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environment", metavar="ENV", help="its name, as `divopd envs` lists it")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the model is saved")
    parser.add_argument("--from", dest="start", type=Path, metavar="MODEL", help="a model folder to go on from")
    parser.add_argument(
        "--labels", choices=("expert", "weak"), default="expert", help="whose actions are learned (default expert)"
    )
    parser.add_argument("--plausible", type=float, help="share of plausible wrong actions (default 0.4)")
    parser.add_argument("--random", type=float, help="share of random actions (default 0.05)")
    parser.add_argument("--repeat", type=float, help="share of earlier actions done again (default 0.1)")
    parser.add_argument("--updates", type=int, default=1600, help="at most so many updates (default 1600)")
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts of one update (default 8)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="its largest value (default 0.003)")
    parser.add_argument(
        "--reading", type=float, help="weight of predicting what is read too (default: 1 for a new model)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and rollouts (default 0)")
    parser.add_argument("--until", type=float, metavar="PERCENT", help="stop at this success rate: with expert labels "
                        "when it is reached from below, with weak labels from above")  # fmt: skip
    parser.add_argument("--evaluate-every", type=int, default=100, help="updates between evaluations (default 100)")
    parser.add_argument("--tasks", type=int, help="tasks of an evaluation (default: the environment's own number)")
    form = "(default: as the model of --from was taught, else"
    parser.add_argument("--answer", choices=("terse", "think"), help=f"form of answers {form} terse)")
    parser.add_argument(
        "--actions", choices=("listed", "unlisted"), help=f"allowed actions in the prompt {form} unlisted)"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch (default 1: the fastest for tiny models, and repeatable)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing folder")


def run(args: argparse.Namespace) -> int:
    if args.out.exists() and not args.force:
        raise InputError(f"{args.out} exists; choose another --out, or pass --force to overwrite it")
    if args.labels == "weak" and args.start is None:
        raise InputError("--labels weak weakens a capable model; name it with --from MODEL")
    if args.threads < 1:
        raise InputError(f"--threads is {args.threads}; expected 1 or more")
    import torch

    from divopd.bootstrap.sft import Evaluations, SftSettings, save_taught_model, teach

    torch.set_num_threads(args.threads)
    lessons = _lessons(args)
    new = 1.0 if args.start is None else 0.0
    settings = SftSettings(
        updates=args.updates,
        rollouts=args.rollouts,
        learning_rate=args.learning_rate,
        reading=new if args.reading is None else args.reading,
    )
    policy = _policy(args, lessons)
    until = args.until
    reached = (lambda percent: percent <= until) if args.labels == "weak" else (lambda percent: percent >= until)
    wanted = reached if until is not None else lambda percent: False
    with _Progress(settings.updates) as progress:
        last = teach(
            policy,
            lessons,
            settings,
            evaluations=Evaluations(every=args.evaluate_every, tasks=args.tasks),
            wanted=wanted,
            report=progress.report,
        )
    save_taught_model(args.out, policy, lessons)
    print(f"{args.out}: success rate {last.percent:.1f} % on {len(last.rollouts)} tasks of {args.environment}")
    return 0 if until is None or wanted(last.percent) else 1


def _lessons(args: argparse.Namespace) -> "Lessons":
    from divopd.bootstrap.demonstrations import Slips
    from divopd.bootstrap.sft import Lessons
    from divopd.models.taught import Taught, differences, read_taught
    from divopd.prompts import style_for

    given = {name: getattr(args, name) for name in ("plausible", "random", "repeat")}
    slips = Slips(**{name: share for name, share in given.items() if share is not None})
    before = read_taught(args.start) if args.start else None
    usual = before or Taught(args.environment, "terse", "unlisted")
    taught = Taught(args.environment, args.answer or usual.answer, args.actions or usual.actions)
    if before and (changed := differences(before, taught)):
        print(f"divopd: {args.start} was taught {changed}", file=sys.stderr)
    style = style_for(args.environment, answer=taught.answer, actions=taught.actions)
    return Lessons(args.environment, style, labels=args.labels, slips=slips, seed=args.seed)


def _policy(args: argparse.Namespace, lessons: "Lessons") -> "TransformersPolicy":
    from divopd.bootstrap.sft import new_policy
    from divopd.models.transformers_policy import TransformersPolicy

    return new_policy(lessons, seed=args.seed) if args.start is None else TransformersPolicy.load(args.start)


class _Progress:
    """A bar on stderr with the loss, and one line per evaluation."""

    def __init__(self, updates: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(file=sys.stderr))
        self._task = self._bar.add_task("sft", total=updates)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def report(self, figures: object) -> None:
        from divopd.bootstrap.sft import SftUpdate

        assert isinstance(figures, SftUpdate)
        self._bar.update(self._task, completed=figures.update + 1, description=f"loss {figures.loss:.3f}")
        if figures.evaluation is not None:
            self._bar.console.print(f"update {figures.update + 1}: success rate {figures.evaluation.percent:.1f} %")
