"""scripts/reference.py [--check]: write the pages of docs/reference from the code, or say which are not up to date.

The pages are committed, so that they can be read as plain files. `make docs` writes them; `make check` and
tests/docs/test_reference.py compare them with the code.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

from reference_api import api_page
from reference_config import config_page
from reference_source import FieldText, module
from reference_text import code, first_sentence, page, prose, table

from divopd.cli import COMMANDS
from divopd.turns import _READERS, _REQUIRED, Turn, turn_to_json

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- Made by scripts/reference.py (`make docs`); never edited by hand. -->\n\n"


# ── the command line ──────────────────────────────────────────────────────────────────────────────────────────────


def cli_page() -> str:
    """Every command with its arguments, from the parsers themselves."""
    parts = [
        "# The command line",
        "`divopd COMMAND --help` prints the same. A mistake is one line on stderr, exit code 2; Ctrl-C is 130.",
        table(["command", "what it does"], [[f"[`{name}`](#divopd-{name})", text] for name, text in COMMANDS.items()]),
    ]
    for name in COMMANDS:
        command = import_module(f"divopd.cli.{name}")
        parser = argparse.ArgumentParser(prog=f"divopd {name}", add_help=False)
        command.add_arguments(parser)
        parts += [f"## divopd {name}", prose(command.HELP), code(cleandoc(command.EXAMPLE))]
        rows = [[f"`{_usage(action)}`", _help(name, action)] for action in parser._actions]
        if rows:
            parts.append(table(["argument", "meaning"], rows))
    return page(*parts)


def _usage(action: argparse.Action) -> str:
    """`--out RUN`, `CONFIG`, `{a,b}`: how an argument is written."""
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else None)
    if not action.option_strings:
        return str(value or action.dest)
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    many = "…" if action.nargs in ("+", "*") else ""
    return f"{', '.join(action.option_strings)} {value or action.dest.upper()}{many}"


def _help(command: str, action: argparse.Action) -> str:
    if not action.help:
        raise SystemExit(f"divopd {command}: {_usage(action)} says nothing of itself; give it a help text")
    text = action.help.replace("%%", "%")
    return f"{text} (required)" if action.required and action.option_strings else text


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────

FIGURES = {
    "BatchFigures": "In `metrics.jsonl` these stand beside each other in a line of kind `update`.",
    "QueueFigures": "The same.",
    "UpdateFigures": "Under `learner` in the same line; loggers show them as `update/learner/NAME`.",
    "LogprobGap": "Under `learner` as `logprob_gap`.",
    "Spent": "Under `spent`, summed since the start of the run.",
    "UpdateRecord": "The line itself.",
    "Answers": "What the student's answers were like.",
    "ProgramFigures": "Not in `metrics.jsonl`: `divopd train` prints them at the end, and the report has them under "
    "Flow of turns. From Python: `divopd.store.program_figures`.",
    "EvaluationRecord": "A line of kind `evaluation`.",
}
PLAIN = {  # what a field says that has no comment in records.py, because its name says it to whoever reads the code
    "rows": "rows of the batch: one turn each",
    "rollouts": "different rollouts among them",
    "turns_per_rollout": "rows / rollouts",
    "tokens": "prompt and response tokens of all rows",
    "dead_rows": "rows without a valid token",
    "valid_tokens": "Σ |V_t|: tokens that count in the loss",
    "loss": "(1/N) Σ_t w_t ℓ_t, with ℓ_t = −(1/|V_t|) Σ_{i∈V_t} r_i A_i (specification §5)",
    "turns_put": "turns that arrived since the start of the run",
    "stale": "turns that left with this update, because they were more than δ versions old",
    "aged_out": "turns that left with this update, because they had been pending for more than W updates",
    "invalid": "turns that the gate dropped with this update",
    "largest": "the largest of them",
    "update": "its number, from 0",
    "clock": "whose seconds these are: `virtual` or `wall`. In the file the seconds are `virtual_s` or `wall_s`",
    "batch": "the figures of the batch, above",
    "queue": "the figures of the queue, above",
    "spent": "what the run has cost so far, above",
    "version": "the policy version that played",
    "success_rate": "100 · solved tasks / tasks",
    "turns": "turns that were counted",
    "tasks": "how many tasks were played",
    "BatchFigures.dead_share": "dead rows / rows; a dead row has no valid token",
    "BatchFigures.kl_per_token": "Σ s / Σ |V|, from the log probabilities that were stored with the turns",
    "BatchFigures.age": "mean of (update − version) over the rows",
    "BatchFigures.disagreement_sd": "standard deviation over the batch's rollouts of Σ s of their rows",
    "UpdateFigures.learner_kl_per_token": "Σ (student − teacher) / Σ |V|, at the weights right before the update",
    "UpdateFigures.gradient_norm": "‖∇ loss‖₂ before clipping",
    "LogprobGap.tokens": "valid tokens of those rows",
    "LogprobGap.mean": "mean of |learner's − generation's log probability|",
}


FORMULAS = {
    "mean_of_last": "mean of the last 0.4 · n values (rounded, at least one)",
    "peak": "max SR",
    "final_five": "mean and sd of the last 5 SR",
    "best_five": "mean of the 5 largest SR",
    "nauc": "U⁻¹ ∫₀ᵁ SR dq",
    "target_rate": "τ = 5 · ⌊peak of vanilla / 5⌋",
    "cost_to_target": "C(τ): cost at the first evaluation with SR ≥ τ",
    "speedup": "C_vanilla(τ) / C_method(τ)",
    "geometric_mean": "exp(mean of ln x)",
    "arrival_per_drain": "(put / elapsed) / (drained / (elapsed − waited))",
    "gini": "2 Σ_i i·x_i / (n Σ x) − (n + 1) / n, with x sorted",
}


def metrics_page() -> str:
    """Every figure that a run writes, and every function that makes one figure of many."""
    records, metrics = module("records"), module("metrics")
    parts = [
        "# Metrics",
        "What a run measures, with its formula. `RUN/metrics.jsonl` has one JSON object a line; the store, the report "
        "and the loggers have the same figures. Exact definitions: [specification §9](../specification.md#9-metrics). "
        "`p_r` is the share of rollout r in the batch's tokens, `s` the disagreement of a turn, `V` its valid tokens.",
        "## Of an update and an evaluation",
    ]
    for name in [name for name in FIGURES if name in records.public()]:
        rows = [[f"`{one.name}`", f"`{one.kind}`", _plain(name, one)] for one in records.fields(name)]
        parts += [
            f"### {name}",
            f"{prose(records.docstring_of(name))} {FIGURES[name]}",
            table(["figure", "type", "meaning"], rows),
        ]
    parts += [
        "## Of a run and of its use of experience",
        "Functions of `divopd.metrics`; `divopd compare` and `divopd replay` print them.",
        table(
            ["function", "formula", "in words"],
            [
                [f"`{name}`", FORMULAS[name], first_sentence(metrics.docstring_of(name))]
                for name in metrics.public()
                if name in FORMULAS
            ],
        ),
        "### Utilization",
        prose(metrics.docstring_of("Utilization")),
        table(
            ["figure", "type", "meaning"],
            [
                [f"`{one.name}`", f"`{one.kind}`", one.meaning or "how many there are"]
                for one in metrics.fields("Utilization")
            ],
        ),
    ]
    return page(*parts)


def _plain(owner: str, figure: FieldText) -> str:
    told = PLAIN.get(f"{owner}.{figure.name}") or figure.meaning or PLAIN.get(figure.name)
    if not told:
        raise SystemExit(f"records.py: the figure {figure.name} says nothing of itself; write a comment behind it")
    return told


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────

EXAMPLE_TURN = Turn(
    rollout="game-17/try-0",
    turn=2,
    task="heat an apple",
    version=3,
    available_at=4,
    prompt_ids=(151644, 872, 198, 5501, 8628, 151645),
    response_ids=(9522, 311, 151645),
    student_logprobs=(-0.41, -1.3, -0.02),
    teacher_logprobs=(-0.1, -0.2, -0.01),
    action_mask=(1, 1, 1),
    teacher_mask=(1, 1, 1),
    reward=1.0,
    success=True,
    rollout_turns=5,
    rollout_valid_tokens=14,
)


MEANINGS = {  # where the specification's table needs none, or speaks of four fields at once
    "task": "what the rollout tries to do; several rollouts may have the same task",
    "response_ids": "the tokens of the response",
    "reward": "of the whole rollout: the sum over its turns",
    "success": "of the whole rollout: was the task solved",
    "rollout_turns": "how many turns the rollout has",
    "rollout_valid_tokens": "valid tokens of all its valid turns; only the row weights of `turnopd` look at it",
}


FORMAT = """
A recording is a text file (UTF-8) with one JSON object a line, one line a turn, in the order in which the turns
arrived. `divopd synth` and `divopd export RUN` write it; `divopd replay` reads it. This is one complete line (here a
turn that is valid, so that every composer can train it):
"""
RULES = """
A field that is not required may be missing or `null`. Lists that are missing, too short or not finite make a turn
*invalid* (with a reason, [specification §2](../specification.md#2-a-turn-and-when-it-is-valid)), never the file
unreadable. Anything else that is wrong stops the reading with one line that names file, line, field, what was got and
what is expected. A turn `(rollout, turn)` occurs once in a file.
"""


def recordings_page() -> str:
    """The interchange format, from the reader's own table and the specification's."""
    meanings = _specification_meanings()
    rows = [
        [f"`{one.name}`", "yes" if one.name in _REQUIRED else "no", _READERS[one.name][1], meanings[one.name]]
        for one in module("turns").fields("Turn")
    ]
    line = json.dumps(turn_to_json(EXAMPLE_TURN), separators=(",", ":"))
    return page(
        "# The recording format",
        prose(FORMAT),
        f"```json\n{line}\n```",
        prose(RULES),
        table(["field", "required", "expected", "meaning"], rows),
        "How to write one from your own loop: [record and replay a foreign run](../howto/record-and-replay.md).",
    )


def _specification_meanings() -> dict[str, str]:
    """The third column of the specification's table of fields, by field, where a row is about one field."""
    text = (ROOT / "docs" / "specification.md").read_text(encoding="utf-8")
    section = text.partition("## §2 ")[2].partition("`V_u` is the set")[0]
    return dict(re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]+?) \|$", section, re.M)) | MEANINGS


# ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────────

PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "cli.md": cli_page,
    "metrics.md": metrics_page,
    "recordings.md": recordings_page,
    "api.md": api_page,
}


def out_of_date(folder: Path = FOLDER) -> list[str]:
    """The pages that are not what the code says today."""
    texts = {name: folder / name for name in PAGES}
    return [
        name for name, path in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != made(name)
    ]


def made(name: str) -> str:
    """A page as it should be."""
    title, _, rest = PAGES[name]().partition("\n\n")
    return f"{title}\n\n{MADE}{rest}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/reference from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is not up to date")
    if parser.parse_args().check:
        old = out_of_date()
        if old:
            print(f"docs/reference: not what the code says: {', '.join(old)}; run `make docs`", file=sys.stderr)
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(made(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
