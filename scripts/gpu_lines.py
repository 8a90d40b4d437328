"""scripts/gpu_lines.py COVERAGE.json [--write]: the lines for GPUs that no test has entered, for docs/cluster.md.

    coverage run --rcfile RC -m pytest -m "slow or not slow" FILES     in .venv and in .venv-vllm
    coverage combine --rcfile RC && coverage json --rcfile RC -o COVERAGE.json

RC has under [run]: source = src/divopd (a whole path), parallel = true, data_file, patch = subprocess, _exit,
sigterm = true. Coverage is not among the project's dependencies: pip install coverage.

A line is for GPUs if it speaks of them (WORDS), or stands under a condition that does, or after one that leaves. Of
these, coverage knows which were never entered. Where both halves are one line (`x if gpu else y`), it cannot know: such
lines are listed apart, unless a test names both (TESTED). Without --write the list is printed.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cluster.md"
BEGIN, END = "<!-- gpu lines: made by scripts/gpu_lines.py -->", "<!-- end of gpu lines -->"
WORDS = re.compile(r"\b(cuda|gpu|gpus|num_gpus|nccl|ipc|_has_gpu|NCCLTrainerInitInfo|IPCTrainerInitInfo)\b")
LEFT_OUT = ("config", "plan")  # they only speak of GPUs, and tests do with all of it
TESTED = {  # tests ask for both halves
    "models/vllm_policy.py": "engine_settings",  # tests/models/test_vllm_memory.py
    "models/logit_chunks.py": "logit_chunks",  # tests/models/test_policy.py
}


class Line(NamedTuple):
    """A statement for GPUs."""

    file: str  # in src/divopd
    where: str  # the function
    number: int
    text: str
    half: bool  # its two halves are one line


def lines_for_gpus(source: str, *, file: str) -> Iterator[Line]:
    """Every statement of a file that is for GPUs, in its order."""
    rows = source.splitlines()
    strings = _docstrings(ast.parse(source))

    def speaks(first: int, last: int) -> bool:
        return any(WORDS.search(rows[n - 1].partition("  #")[0]) for n in range(first, last + 1) if n not in strings)

    def visit(node: ast.AST, where: str, under: bool) -> Iterator[Line]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from visit(child, f"{where}.{child.name}".strip("."), False)
            elif isinstance(child, ast.stmt):
                head = child.test.end_lineno if isinstance(child, ast.If | ast.While) else child.end_lineno
                body = isinstance(child, ast.With | ast.For | ast.Try)
                speaking = not body and speaks(child.lineno, head or child.lineno)
                if speaking or (under and not body):
                    half = speaking and any(
                        isinstance(e, ast.IfExp) and WORDS.search(ast.unparse(e)) for e in ast.walk(child)
                    )
                    yield Line(file, where, child.lineno, rows[child.lineno - 1].strip(), half)
                condition = child if speaking and isinstance(child, ast.If) else None
                yield from visit(child, where, under or condition is not None)
                if condition and isinstance(condition.body[-1], ast.Return | ast.Raise | ast.Continue):
                    under = True

    yield from visit(ast.parse(source), "", False)


def _docstrings(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def listed(coverage: dict) -> list[Line]:
    """The statements for GPUs that were never entered, and those of which only one half can have been."""
    chosen = []
    for name, measured in sorted(coverage["files"].items()):
        path = Path(name)
        file = path.as_posix().partition("src/divopd/")[2]
        if file.split("/")[0] in LEFT_OUT:
            continue
        missing = set(measured["missing_lines"])
        for line in lines_for_gpus((ROOT / "src" / "divopd" / file).read_text(encoding="utf-8"), file=file):
            if line.number in missing or (line.half and TESTED.get(file) != line.where):
                chosen.append(line._replace(half=line.number not in missing))
    return chosen


def table(lines: list[Line]) -> str:
    """As the page has it: by file and function, without numbers, which every change would move."""
    rows = ["| file | function | line | |", "|---|---|---|---|"]
    for line in lines:
        text = line.text.partition("  #")[0].replace("|", "\\|")
        half = "its half for CPUs was entered" if line.half else "not entered"
        rows.append(f"| `{line.file}` | `{line.where}` | `{text}` | {half} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coverage", type=Path)
    parser.add_argument("--write", action="store_true", help="put it into docs/cluster.md")
    args = parser.parse_args()
    made = table(listed(json.loads(args.coverage.read_text())))
    if not args.write:
        print(made)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
