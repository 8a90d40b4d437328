"""`divopd evaluate`: how often a trained or any other model succeeds."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.errors import InputError

if TYPE_CHECKING:
    from divopd.config import Config
    from divopd.evaluation import Evaluation
    from divopd.models.transformers_policy import TransformersPolicy

HELP = "Play the evaluation tasks with a run's weights or with a model, and print how many succeed."
EXAMPLE = """divopd evaluate runs/mine --version 50
  divopd evaluate embedded:teacher --config configs/default/divopd.yaml
  divopd evaluate embedded:teacher --config configs/default/divopd.yaml --after embedded:student --after-turns 10
  divopd evaluate my-model --environment alfworld-small --answer terse --actions unlisted
  divopd evaluate model-of-divopd-sft"""

TERSE_TOKENS = 32  # enough for a bare action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", metavar="RUN|MODEL", help="runs, model folders or embedded:NAME")
    parser.add_argument("--version", type=int, metavar="N", help="of a run: this policy version (default: the latest)")
    parser.add_argument("--config", help="how a model is evaluated: as this configuration says (a file, or its name)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override, with --config")
    as_taught = "(default: as `divopd sft` taught the model"
    parser.add_argument(
        "--environment", metavar="ENV", help=f"or: on this environment, with its own settings {as_taught})"
    )
    parser.add_argument(
        "--answer", choices=("think", "terse"), help=f"without --config: the form of answers {as_taught}, else think)"
    )
    parser.add_argument(
        "--actions", choices=("listed", "unlisted"), help=f"without --config: those allowed, in the prompt {as_taught})"
    )
    parser.add_argument("--tasks", type=int, metavar="N", help="only the first so many evaluation tasks")
    parser.add_argument("--after", metavar="MODEL", help="this model acts first, and what is evaluated takes over")
    parser.add_argument("--after-turns", type=int, default=10, metavar="N", help="after so many turns (default 10)")
    parser.add_argument("--json", action="store_true", help="one object a model")


def run(args: argparse.Namespace) -> int:
    if args.tasks is not None and args.tasks < 1:
        raise InputError(f"--tasks is {args.tasks}; expected 1 or more")
    if args.after_turns < 1:
        raise InputError(f"--after-turns is {args.after_turns}; expected 1 or more")
    if args.config and args.environment:
        raise InputError("--config says the environment; give either --config or --environment")
    if args.set and not args.config:
        raise InputError("--set overrides what --config says; give --config too")
    results: list[dict[str, Any]] = []
    for what in args.what:
        result = _evaluate(what, args)
        results.append(result)
        if args.json:
            print(json.dumps(result), flush=True)
    if not args.json:
        _print_table(results)
    return 0


def _evaluate(what: str, args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from divopd.evaluation import exam_of, open_at_takeover
    from divopd.pipeline.vocabularies import Vocabularies
    from divopd.plan.dry_run import taught_otherwise
    from divopd.prompts import Codec
    from divopd.records import encode_evaluation

    config, weights = _of_run(Path(what), args) if _is_run(what) else (_of_model(what, args), None)
    playing = {"model": config.student.model} | ({"--after": args.after} if args.after else {})
    for note in taught_otherwise(config, playing):
        print(f"divopd: {note}", file=sys.stderr)
    if args.tasks:
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"tasks": args.tasks})})
    torch.set_num_threads(config.threads)
    policy = _load(config, weights)
    if args.after:
        _check_model(args.after)
        pair = _taught_by(_in_place(config, args.after), config.student.model)
        vocabularies = Vocabularies(pair)
        vocabularies.check()
        first, exam = _load(pair, None), exam_of(pair, vocabularies.student_codec())
        exam = replace(exam, acting=replace(exam.acting, teacher_reader=vocabularies.teacher_reader()))
        taken = exam.play_takeover(policy, student=first, after_turns=args.after_turns)
        played = open_at_takeover(taken, after_turns=args.after_turns)
        more = _compare(played, exam.play(first), what, args, config)
    else:
        exam = exam_of(config, Codec(policy.tokenizer, template=config.prompts.template))
        played, more = exam.play(policy), {}
    version = int(weights.name) if weights else None
    named = {"what": what, "version": version, "environment": config.environment.name}
    figures = encode_evaluation(exam.record(played, version=version or 0))
    return named | figures | {"version": version} | more  # a model that is no run's has no version


def _compare(
    played: "Evaluation", alone: "Evaluation", what: str, args: argparse.Namespace, config: "Config"
) -> dict[str, Any]:
    """What the first model makes by itself of the rollouts that it had open; kept for `divopd train` to find."""
    from divopd.evaluation import open_at_takeover
    from divopd.takeovers import Takeover, keep_takeover

    found = Takeover(
        teacher=what,
        student=args.after,
        environment=config.environment.name,
        after_turns=args.after_turns,
        rollouts=len(played.rollouts),
        teacher_percent=played.percent,
        student_percent=open_at_takeover(alone, after_turns=args.after_turns).percent,
    )
    # a run's weights are no teacher's, and a part of the tasks says too little
    kept = None if _is_run(what) or args.tasks else keep_takeover(found, config.environment.settings)
    return {"after": args.after, "student_percent": found.student_percent, "kept": str(kept) if kept else None}


def _is_run(what: str) -> bool:
    return (Path(what) / "config.yaml").is_file()


def _of_run(folder: Path, args: argparse.Namespace) -> tuple["Config", Path]:
    """A run is evaluated as it was configured, with the weights of one of its versions."""
    from divopd.config import load_config
    from divopd.run.checkpoints import latest_checkpoint
    from divopd.run.durable_folder import numbered_folders, numbered_path

    if args.config or args.environment:
        raise InputError(f"{folder} is a run and says itself how it is evaluated; leave --config and --environment out")
    published = folder / "weights"
    known = [int(path.name) for path in numbered_folders(published)]
    if not known:
        raise InputError(f"{folder}: no weights in it yet; expected a run that `divopd train` has begun")
    if args.version is not None and args.version not in known:
        raise InputError(f"{folder}: no weights of version {args.version}; it has {', '.join(map(str, known))}")
    chosen = latest_checkpoint(published) if args.version is None else numbered_path(published, args.version)
    assert chosen is not None
    return load_config(folder / "config.yaml"), chosen


def _of_model(what: str, args: argparse.Namespace) -> "Config":
    """A model is evaluated as --config or --environment says, in the place of the student, or as it was taught."""
    from divopd.config import Config, load_config
    from divopd.environments import find_entry
    from divopd.models.model_files import model_folder
    from divopd.models.taught import read_taught

    if args.version is not None:
        raise InputError(f"--version {args.version} is of a run, but {what} is none (no config.yaml in it)")
    _check_model(what)
    if args.config:  # the model is named before the configuration is completed, so that its own form of answers counts
        return _in_place(load_config(args.config, [*args.set, f"student.model={json.dumps(what)}"]), what)
    taught = read_taught(model_folder(what))
    name = args.environment or (taught and taught.environment)
    if not name:
        raise InputError(f"{what} is a model: say how to evaluate it with --config CONFIG or --environment ENV")
    find_entry(name)  # a wrong name is refused with the nearest one
    form = {"answer": args.answer, "actions": args.actions}
    config = Config.model_validate({"environment": {"name": name}, "prompts": form, "student": {"model": what}})
    if config.prompts.answer != "terse":
        return config
    return config.model_copy(
        update={"explorer": config.explorer.model_copy(update={"max_response_tokens": TERSE_TOKENS})}
    )


def _check_model(model: str) -> None:
    from divopd.models.hub import fetch_models
    from divopd.models.model_files import hub_advice

    if fetch_models([model]):
        return
    if not model.startswith("embedded:") and not (Path(model) / "config.json").is_file():
        raise InputError(
            f"{model}: expected a run (config.yaml), a model folder (config.json) or embedded:NAME; got neither"
            f"{hub_advice(model)}"
        )


def _in_place(config: "Config", model: str) -> "Config":
    """The same configuration with another model in the place of the student."""
    return config.model_copy(update={"student": config.student.model_copy(update={"model": model, "lora": None})})


def _taught_by(config: "Config", model: str) -> "Config":
    """The same configuration with this one model as the teacher, which reads prompts as the configuration says."""
    teacher = config.teacher.model_copy(update={"model": model, "url": None, "by_task": {}})
    return config.model_copy(update={"teacher": teacher})


def _load(config: "Config", weights: Path | None) -> "TransformersPolicy":
    from divopd.pipeline.models import load_student
    from divopd.run.checkpoints import load_weights

    policy = load_student(config)
    if weights is not None:
        load_weights(weights, policy.model)
    return policy


def _print_table(results: list[dict[str, Any]]) -> None:
    from divopd.report.printable import printable
    from divopd.report.run_tables import new_table, plain_console

    console = plain_console()
    table = new_table("success rate", ["what", "environment", "version", "tasks", "turns", "success\n%"], texts=2)
    for result in results:
        table.add_row(
            printable(result["what"]),
            printable(result["environment"]),
            "–" if result["version"] is None else str(result["version"]),
            str(result["tasks"]),
            f"{result['turns']:.1f}",
            f"{result['success_rate']:.1f}",
        )
    console.print(table)
    for result in results:
        if "after" in result:
            alone = f"{printable(result['after'])} itself succeeds in {result['student_percent']:.1f} % of them"
            console.print(f"open rollouts only; {alone}; kept for `divopd train`: {result['kept'] or 'no'}")
    kinds = list(dict.fromkeys(kind for result in results for kind in result["by_kind"]))
    if len(kinds) < 2:
        return
    table = new_table("by kind of task, in %", ["kind", *(printable(result["what"]) for result in results)])
    for kind in kinds:
        rates = (result["by_kind"].get(kind) for result in results)
        table.add_row(printable(kind), *("–" if rate is None else f"{rate:.1f}" for rate in rates))
    console.print(table)
