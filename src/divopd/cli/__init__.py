"""The command line. Each command is a module of this folder with HELP, EXAMPLE, add_arguments and run.

Only the module of the command that is called gets imported, and heavy libraries only inside its `run`, so that
`divopd --help` answers at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from divopd.errors import DivopdError, UnknownNameError
from divopd.extras import as_missing_extra
from divopd.printable import tell

COMMANDS = {
    "demo": "see the allocation problem, and what the composers do about it",
    "train": "distil a teacher into a student while the student acts",
    "init": "write a configuration for your own environment and models",
    "config": "every setting, what it means, and where its value comes from",
    "evaluate": "how often a student succeeds",
    "compare": "runs side by side: success, cost, use of experience",
    "report": "runs as one page that opens offline",
    "watch": "the same page, live, while a run goes on",
    "replay": "run composers over a recording and compare what they train",
    "explain": "show one batch: who got slots, what waited, what fell out and why",
    "why": "tell the fate of every turn of a rollout",
    "audit": "check a run's ledger, or measure how a run used its experience",
    "export": "write a run's turns as JSON lines, or its student as a model",
    "synth": "make a synthetic recording from a stated queue model",
    "sft": "make a teacher or an initial student by supervised fine-tuning",
    "play": "act in an environment yourself, or watch an expert or a model",
    "envs": "list the environments, what they need, and their tasks",
    "methods": "list the composers",
    "paper": "make the paper's tables, figures and claims at the scale of a laptop",
    "bench": "measure speed against the best short way, or a real package",
    "doctor": "what is installed, what is missing, and how to get it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Errors of the user are one line on stderr and exit code 2; Ctrl-C is 130."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_overview())
            return 0
        if arguments[0] == "--version":
            from divopd import __version__

            print(f"divopd {__version__}")
            return 0
        name, rest = arguments[0], arguments[1:]
        if name not in COMMANDS:
            raise UnknownNameError("command", name, COMMANDS)
        module = import_module(f"divopd.cli.{name}")
        return module.run(_parser(name, module).parse_args(rest))
    except DivopdError as error:
        tell(error)
        return 2
    except ModuleNotFoundError as error:
        if (missing := as_missing_extra(error)) is None:
            raise
        tell(missing)
        return 2
    except KeyboardInterrupt:
        tell("stopped")
        return 130
    except BrokenPipeError:  # the reader of a pipe has left; keep Python from complaining about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a folder that cannot be written, a disk that is full: nothing of ours to trace
        tell(f"{error.filename or 'a file'}: {error.strerror or error}; choose another place, or make room there")
        return 2


def _parser(name: str, module: ModuleType) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"divopd {name}",
        description=module.HELP,
        epilog=f"example:\n  {module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return parser


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "divopd: asynchronous on-policy distillation of multi-turn agents",
            "",
            "usage: divopd COMMAND [options]      (divopd COMMAND --help tells more)",
            "",
            *lines,
            "",
            "example:",
            "  divopd synth alfworld --out turns.jsonl && divopd replay turns.jsonl --method vanilla divopd",
        ]
    )
