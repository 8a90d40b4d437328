"""`divopd evaluate`: how often a trained or any other model succeeds."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divopd.errors import InputError
from divopd.printable import tell

if TYPE_CHECKING:
    from divopd.config import Config
    from divopd.evaluation import Evaluation, Exam
    from divopd.explorer import Played

HELP = "Play the evaluation tasks with a run's weights or with a model, and print how many succeed."
EXAMPLE = """divopd evaluate runs/mine@50
  divopd evaluate embedded:teacher --config configs/default/divopd.yaml
  divopd evaluate embedded:teacher --config configs/default/divopd.yaml --after embedded:student --after-turns 10
  divopd evaluate my-model --environment alfworld-small --answer terse --actions unlisted
  divopd evaluate model-of-divopd-sft --transcripts rollouts.jsonl"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", metavar="RUN[@VERSION]|MODEL", help="runs, model folders or embedded:NAME")
    parser.add_argument("--version", type=int, metavar="N", help="of a run: this policy version (default: the latest)")
    parser.add_argument("--config", help="how a model is evaluated: as this configuration says (a file, or its name)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override, with --config")
    parser.add_argument("--machine", metavar="NAME", help="with --config: on this machine, as `divopd train` takes it")
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
    parser.add_argument(
        "--transcripts", type=Path, metavar="OUT.jsonl", help="also keep every rollout, turn by turn, in a new file"
    )
    parser.add_argument("--json", action="store_true", help="one object a model")


def run(args: argparse.Namespace) -> int:
    if args.tasks is not None and args.tasks < 1:
        raise InputError(f"--tasks is {args.tasks}; expected 1 or more")
    if args.after_turns < 1:
        raise InputError(f"--after-turns is {args.after_turns}; expected 1 or more")
    if args.config and args.environment:
        raise InputError("--config says the environment; give either --config or --environment")
    if (args.set or args.machine) and not args.config:
        option = "--set" if args.set else "--machine"
        raise InputError(f"{option} overrides what --config says; give --config too")
    if args.transcripts:
        from divopd.transcripts import refuse_file

        refuse_file(args.transcripts)
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
    from divopd.pipeline.named_models import check_model, is_run, load_policy
    from divopd.pipeline.vocabularies import Vocabularies
    from divopd.plan.dry_run import taught_otherwise
    from divopd.prompts import Codec
    from divopd.records import encode_evaluation

    config, weights = _of_run(what, args) if is_run(what) else (_of_model(what, args), None)
    playing = {"model": config.student.model} | ({"--after": args.after} if args.after else {})
    for note in taught_otherwise(config, playing):
        tell(note)
    if args.tasks:
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"tasks": args.tasks})})
    torch.set_num_threads(config.threads)
    policy = load_policy(config, weights)
    if args.after:
        check_model(args.after)
        pair = _taught_by(_in_place(config, args.after), config.student.model)
        vocabularies = Vocabularies(pair)
        vocabularies.check()
        first, exam = load_policy(pair, None), exam_of(pair, vocabularies.student_codec())
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
    if args.transcripts:
        _keep(args.transcripts, played, exam, of=named)
    return named | figures | {"version": version} | more  # a model that is no run's has no version


def _keep(path: Path, played: "Evaluation", exam: "Exam", *, of: dict[str, Any]) -> None:
    """The transcripts of an evaluation, each with what was evaluated."""
    from divopd.environments import kind_of
    from divopd.transcripts import add_transcripts, transcript_of

    def transcript(rollout: "Played") -> dict[str, Any]:
        kind = kind_of(exam.environment, rollout.start.task, **exam.settings)
        return of | transcript_of(rollout, exam.acting, kind=kind)

    add_transcripts(path, map(transcript, played.rollouts))


def _compare(
    played: "Evaluation", alone: "Evaluation", what: str, args: argparse.Namespace, config: "Config"
) -> dict[str, Any]:
    """What the first model makes by itself of the rollouts that it had open; kept for `divopd train` to find."""
    from divopd.evaluation import open_at_takeover
    from divopd.pipeline.named_models import is_run
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
    kept = None if is_run(what) or args.tasks else keep_takeover(found, config.environment.settings)
    return {"after": args.after, "student_percent": found.student_percent, "kept": str(kept) if kept else None}


def _of_run(what: str, args: argparse.Namespace) -> tuple["Config", Path]:
    """A run is evaluated as it was configured, with the weights of one of its versions."""
    from divopd.pipeline.named_models import find_weights, load_config_of_run, split_version

    run, version = split_version(what)
    if args.config or args.environment:
        raise InputError(
            f"{run.path} is a run and says itself how it is evaluated; leave --config and --environment out"
        )
    if version is not None and args.version is not None:
        raise InputError(f"{what} says its version; leave --version {args.version} out")
    weights = find_weights(run, args.version if version is None else version)
    return load_config_of_run(run), weights


def _of_model(what: str, args: argparse.Namespace) -> "Config":
    """A model is evaluated as --config or --environment says, in the place of the student, or as it was taught."""
    from divopd.config import load_config
    from divopd.pipeline.named_models import check_model, config_of_model

    if args.version is not None:
        raise InputError(f"--version {args.version} is of a run, but {what} is none (no config.yaml in it)")
    if not args.config:
        form = {"answer": args.answer, "actions": args.actions}
        return config_of_model(what, environment=args.environment, form=form)
    check_model(what)
    # the model is named before the configuration is completed, so that its own form of answers counts
    named = [*args.set, f"student.model={json.dumps(what)}"]
    return _in_place(load_config(args.config, named, machine=args.machine), what)


def _in_place(config: "Config", model: str) -> "Config":
    """The same configuration with another model in the place of the student."""
    return config.model_copy(update={"student": config.student.model_copy(update={"model": model, "lora": None})})


def _taught_by(config: "Config", model: str) -> "Config":
    """The same configuration with this one model as the teacher, which reads prompts as the configuration says."""
    teacher = config.teacher.model_copy(update={"model": model, "url": None, "by_task": {}})
    return config.model_copy(update={"teacher": teacher})


def _print_table(results: list[dict[str, Any]]) -> None:
    from divopd.printable import printable
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
