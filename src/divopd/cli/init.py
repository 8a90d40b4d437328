"""`divopd init`: from an environment, a student and a teacher to a configuration that trains."""

import argparse
import sys
from pathlib import Path

from divopd.errors import InputError

HELP = "Write a commented configuration for your environment, student and teacher, and tell the next three commands."
EXAMPLE = """divopd init --environment rooms.py:Rooms --student models/small-llm --teacher http://127.0.0.1:8000/v1
  divopd init --environment rooms.py:Rooms --student models/small-llm --teacher expert --out rooms
  divopd init --environment gym:my_games:Maze-v0 --student owner/small@REVISION --teacher owner/large@REVISION
  divopd init --environment "command node agent.js" --student models/small-llm --teacher http://127.0.0.1:8000/v1
  divopd init --environment builtin --student embedded:student --teacher embedded:teacher"""
ASKED = {
    "environment": "environment (FILE.py:Class, written if it is not there; gym:ID; command WORDS; or builtin)",
    "student": "student (a model folder, owner/name@revision of the Hub, or embedded:student)",
    "teacher": "teacher (a model folder, owner/name@revision, the address of a server, embedded:teacher, or expert)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--environment",
        metavar="ENV",
        help="FILE.py:Class (a file that is not there is written, to be changed), gym:ID, a name of `divopd envs`, "
        '"command WORDS" (an agent program), or builtin',
    )
    parser.add_argument("--student", metavar="MODEL", help="a folder, owner/name@revision of the Hub, or embedded:NAME")
    parser.add_argument(
        "--teacher",
        metavar="MODEL|URL|expert",
        help="a model as for --student, the address of an OpenAI-compatible server, or expert: made of the student by "
        "lessons of the environment's expert",
    )
    parser.add_argument("--teacher-model", metavar="NAME", help="the model's name on the server (default: its first)")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where (default: the current folder)")


def run(args: argparse.Namespace) -> int:
    from divopd.bootstrap.starting import Wish, plan_start

    said = {name: getattr(args, name) or _ask(name, question) for name, question in ASKED.items()}
    start = plan_start(Wish(**said, out=args.out, teacher_name=args.teacher_model))
    try:
        for file, text in start.files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file}", file=sys.stderr)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be written ({error.strerror}); choose another --out") from None
    print("next:", file=sys.stderr)
    for why, command in start.commands:
        print(f"# {why}", file=sys.stderr)
        print(command, flush=True)  # in order, also where both go to one file
    return 0


def _ask(name: str, question: str) -> str:
    """The answer of a person; without a terminal there is nobody to ask."""
    if not sys.stdin.isatty():
        raise InputError(f"--{name} is missing; expected {question.partition(' ')[2].strip('()')}")
    try:
        answer = input(f"{question}: ").strip()
    except EOFError:
        answer = ""
    if not answer:
        raise InputError(f"no {name} was named; nothing was written")
    return answer
