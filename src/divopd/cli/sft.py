"""`divopd sft`: make a teacher or an initial student by supervised fine-tuning."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING

from divopd.errors import InputError
from divopd.printable import tell

if TYPE_CHECKING:
    from divopd.bootstrap.rejection import Collected, Teacher
    from divopd.bootstrap.sft import Lessons, SftSettings, SftUpdate
    from divopd.evaluation import Evaluation
    from divopd.models.taught import Actions, Answer, Taught
    from divopd.models.transformers_policy import TransformersPolicy

HELP = (
    "Fine-tune a model on rollouts of an environment's expert (a teacher), of a weak policy (a weak student), or on "
    "those rollouts of a teacher that succeed (a student, where there is no expert)."
)
EXAMPLE = """divopd sft alfworld-small --out teacher --until 90
  divopd sft alfworld-small --out capable --seed 1 --until 90
  divopd sft alfworld-small --out student --from capable --labels weak --plausible 0.7 --until 20 --evaluate-every 10
  divopd sft mine.py:Rooms --out student --from small-llm --from-teacher large-llm --demonstrations 64"""
LARGE, LARGE_RATE = 10_000_000, 1e-5  # a pretrained model forgets what it knows at the rate of a tiny one
TERSE_TOKENS, THINKING_TOKENS = 32, 512  # of an answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environment", metavar="ENV", help="its name, as `divopd envs` lists it")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the model is saved")
    parser.add_argument("--from", dest="start", type=Path, metavar="MODEL", help="a model folder to go on from")
    parser.add_argument(
        "--labels", choices=("expert", "weak"), default="expert", help="whose actions are learned (default expert)"
    )
    add_teacher_arguments(parser)
    parser.add_argument("--plausible", type=float, help="share of plausible wrong actions (default 0.4)")
    parser.add_argument("--random", type=float, help="share of random actions (default 0.05)")
    parser.add_argument("--repeat", type=float, help="share of earlier actions done again (default 0.1)")
    parser.add_argument("--updates", type=int, help="at most so many updates (default 1600; with --from-teacher and "
                        "--from: three times through the demonstrations)")  # fmt: skip
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts of one update (default 8)")
    parser.add_argument("--learning-rate", type=float, help="its largest value (default 0.003; for more than "
                        f"{LARGE // 10**6} million parameters {LARGE_RATE:g})")  # fmt: skip
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


def add_teacher_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of rejection sampling."""
    parser.add_argument(
        "--from-teacher",
        dest="teacher",
        metavar="TEACHER",
        help="learn what this teacher does where it succeeds: a model folder, embedded:NAME or a server's address",
    )
    parser.add_argument("--teacher-model", metavar="NAME", help="the model's name on the server (default: its first)")
    parser.add_argument(
        "--demonstrations", type=int, default=128, metavar="N", help="its successful rollouts to learn (default 128)"
    )
    parser.add_argument(
        "--attempts", type=int, default=1024, metavar="N", help="its rollouts, then go on with fewer (default 1024)"
    )
    parser.add_argument("--temperature", type=float, default=0.7, help="of the teacher's answers (default 0.7)")
    tokens = f"{TERSE_TOKENS} for terse answers, else {THINKING_TOKENS}"
    parser.add_argument("--response-tokens", type=int, metavar="N", help=f"its longest answer (default {tokens})")


def run(args: argparse.Namespace) -> int:
    _refuse(args)
    import torch

    from divopd.bootstrap.sft import save_taught_model
    from divopd.models.hub import fetch_models

    fetch_models(str(model) for model in (args.start, args.teacher) if model)
    torch.set_num_threads(args.threads)
    until = args.until
    reached = (lambda percent: percent <= until) if args.labels == "weak" else (lambda percent: percent >= until)
    wanted = reached if until is not None else lambda percent: False
    policy, lessons, last = (_by_teacher if args.teacher else _by_expert)(args, wanted)
    save_taught_model(args.out, policy, lessons)
    print(f"{args.out}: success rate {last.percent:.1f} % on {len(last.rollouts)} tasks of {args.environment}")
    return 0 if until is None or wanted(last.percent) else 1


def _refuse(args: argparse.Namespace) -> None:
    """What is wrong is told before anything is loaded."""
    if args.out.exists() and not args.force:
        raise InputError(f"{args.out} exists; choose another --out, or pass --force to overwrite it")
    if args.labels == "weak" and args.start is None:
        raise InputError("--labels weak weakens a capable model; name it with --from MODEL")
    if args.labels == "weak" and args.teacher:
        raise InputError("--labels weak has labels of its own; give either --labels weak or --from-teacher TEACHER")
    if args.teacher_model and not args.teacher:
        raise InputError("--teacher-model names a model on a server; give the server with --from-teacher URL")
    for name in ("threads", "updates", "rollouts", "demonstrations", "attempts", "response_tokens"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}; expected 1 or more")
    if not 0 <= args.temperature < inf:
        raise InputError(f"--temperature is {args.temperature}; expected 0 or more")
    if args.learning_rate is not None and not 0 < args.learning_rate < inf:
        raise InputError(f"--learning-rate is {args.learning_rate}; expected more than 0")


def _by_expert(
    args: argparse.Namespace, wanted: Callable[[float], bool]
) -> "tuple[TransformersPolicy, Lessons, Evaluation]":
    """Lessons of the environment's expert, or of the policy that slips."""
    from divopd.bootstrap.sft import Evaluations, new_policy, teach

    lessons = _lessons(args, _taught_before(args))
    settings = _settings(args, updates=args.updates or 1600)
    policy = new_policy(lessons, seed=args.seed) if args.start is None else _load(args)
    evaluations = Evaluations(every=args.evaluate_every, tasks=args.tasks)
    with _Progress(settings.updates) as progress:
        last = teach(policy, lessons, settings, evaluations=evaluations, wanted=wanted, report=progress.report)
    return policy, lessons, last


def _by_teacher(
    args: argparse.Namespace, wanted: Callable[[float], bool]
) -> "tuple[TransformersPolicy, Lessons, Evaluation]":
    """Lessons of a teacher's successes. Without --from, the student is a tiny one with the teacher's tokenizer."""
    from divopd.bootstrap.rejection import lessons_of, load_teacher, told_again
    from divopd.bootstrap.sft import Evaluations, exam_for, learn, random_policy
    from divopd.prompts import Codec

    evaluations = Evaluations(every=args.evaluate_every, tasks=args.tasks)
    teacher = load_teacher(args.teacher, served_as=args.teacher_model)
    if args.start is None and teacher.tokenizer is None:
        raise InputError(
            f"{args.teacher} shows no tokenizer; name a student that has the same with --from MODEL, or the folder of "
            "the server's model with --teacher-model FOLDER"
        )
    lessons = _lessons(args, teacher.taught or _taught_before(args) or _form("think", "listed", args))
    policy = random_policy(teacher.tokenizer, seed=args.seed) if args.start is None else _load(args)
    tokens = args.response_tokens or (TERSE_TOKENS if lessons.style.answer == "terse" else THINKING_TOKENS)
    collected = _collect(args, teacher, policy, lessons, tokens)
    examples = lessons_of(collected, policy, teacher, lessons.style)
    settings = _settings(
        args, updates=args.updates or (ceil(3 * len(examples) / args.rollouts) if args.start else 1600)
    )
    exam = exam_for(lessons, Codec(policy.tokenizer), tasks_wanted=args.tasks, answer_tokens=tokens)
    with _Progress(settings.updates) as progress:
        stream = told_again(examples, seed=args.seed)
        every = evaluations.every
        last = learn(policy, stream, settings, exam=exam, every=every, wanted=wanted, report=progress.report)
    return policy, lessons, last


def _collect(
    args: argparse.Namespace, teacher: "Teacher", policy: "TransformersPolicy", lessons: "Lessons", tokens: int
) -> "Collected":
    """The teacher's successes, with a bar on stderr, and a line about how many there were."""
    from divopd.bootstrap.rejection import Sampling, collect_successes, teachable
    from divopd.explorer import Acting

    sampling = Sampling(wanted=args.demonstrations, attempts=args.attempts)
    longest = lessons.style.max_prompt_tokens
    room = max(1, min(longest, (teacher.context or longest + tokens) - tokens))
    acting = Acting(
        replace(lessons.style, max_prompt_tokens=room),
        teachable(teacher, policy.tokenizer),
        temperature=args.temperature,
        max_response_tokens=tokens,
        seed=args.seed,
    )
    with _Progress(sampling.wanted, "the teacher plays") as progress:
        collected = collect_successes(teacher.policy, args.environment, acting, sampling, report=progress.collected)
    print(
        f"{args.teacher}: {len(collected.rollouts)} of {collected.played} rollouts in {args.environment} succeeded "
        f"({collected.percent:.1f} %) and are the demonstrations",
        file=sys.stderr,
    )
    return collected


def _settings(args: argparse.Namespace, *, updates: int) -> "SftSettings":
    from divopd.bootstrap.sft import SftSettings
    from divopd.models.model_files import model_folder, read_model_facts

    large = args.start is not None and read_model_facts(model_folder(str(args.start))).parameters > LARGE
    new = 1.0 if args.start is None else 0.0
    return SftSettings(
        updates=updates,
        rollouts=args.rollouts,
        learning_rate=args.learning_rate or (LARGE_RATE if large else 3e-3),
        reading=new if args.reading is None else args.reading,
    )


def _taught_before(args: argparse.Namespace) -> "Taught | None":
    from divopd.models.model_files import model_folder
    from divopd.models.taught import read_taught

    return read_taught(model_folder(str(args.start))) if args.start else None


def _form(answer: "Answer", actions: "Actions", args: argparse.Namespace) -> "Taught":
    from divopd.models.taught import Taught

    return Taught(args.environment, answer, actions)


def _lessons(args: argparse.Namespace, usual: "Taught | None") -> "Lessons":
    """What is taught, in the form that the options say, or else in the usual one."""
    from divopd.bootstrap.demonstrations import Slips
    from divopd.bootstrap.sft import Lessons
    from divopd.models.taught import differences
    from divopd.prompts import style_for

    given = {name: getattr(args, name) for name in ("plausible", "random", "repeat")}
    slips = Slips(**{name: share for name, share in given.items() if share is not None})
    usual = usual or _form("terse", "unlisted", args)
    taught = _form(args.answer or usual.answer, args.actions or usual.actions, args)
    before = _taught_before(args)
    if before and (changed := differences(before, taught)):
        tell(f"{args.start} was taught {changed}")
    style = style_for(args.environment, answer=taught.answer, actions=taught.actions)
    return Lessons(args.environment, style, labels=args.labels, slips=slips, seed=args.seed)


def _load(args: argparse.Namespace) -> "TransformersPolicy":
    from divopd.models.model_files import model_folder
    from divopd.models.transformers_policy import TransformersPolicy

    return TransformersPolicy.load(model_folder(str(args.start)))


class _Progress:
    """A bar on stderr with the loss, and one line per evaluation."""

    def __init__(self, total: int, what: str = "sft") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(file=sys.stderr))
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def report(self, figures: "SftUpdate") -> None:
        self._bar.update(self._task, completed=figures.update + 1, description=f"loss {figures.loss:.3f}")
        if figures.evaluation is not None:
            self._bar.console.print(f"update {figures.update + 1}: success rate {figures.evaluation.percent:.1f} %")

    def collected(self, collected: "Collected") -> None:
        told = f"the teacher succeeds in {collected.percent:.0f} % of {collected.played}"
        self._bar.update(self._task, completed=len(collected.rollouts), description=told)
