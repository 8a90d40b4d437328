"""The code blocks of a page, run as a reader would: in order, in one folder, each from where the last one left off.

What a block is, its language says:

- `bash`: commands. `text` right below one: lines that it prints; a line `…` stands for any lines, `…` in a line for
  any text.
- `python`, `yaml`: written to a file if the first line names one (`# rooms.py`), otherwise Python is run, all blocks of
  a page in one namespace.
- everything else is shown and not run.

A comment before a block changes that: `<!-- not run: WHY -->`; `<!-- slow -->`: this block and what follows on the page
is run with the slow tests only; `<!-- figures vary -->`: numbers in the text below it stand for any numbers.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divopd.cli import main

FENCE = re.compile(
    r"(?P<note>(?: *<!-- [^\n]*? -->\n+)*) *```(?P<language>[\w{}-]*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE
)
NAMED = re.compile(r"# (\S+\.(?:py|yaml))\n")
SHELL = re.compile(r"[|<>&;`*]|\$\(")  # what only a shell understands


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what it is, and what the comments before it say."""

    page: Path
    line: int
    language: str
    text: str
    notes: tuple[str, ...]
    expected: str | None  # the text block right below it

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        shown = any(note.startswith("not run: ") for note in self.notes)
        return self.language in ("bash", "python", "yaml") and not shown


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    blocks: list[Block] = []
    for place, match in enumerate(found):
        below = found[place + 1] if place + 1 < len(found) else None
        gap = text[match.end() : below.start()] if below else "x"
        expected = below["text"] if below and below["language"] == "text" and not gap.strip() else None
        notes = tuple(re.findall(r"<!-- (.*?) -->", match["note"]))
        line = text.count("\n", 0, match.start("language")) + 1
        blocks.append(Block(page, line, match["language"], match["text"], notes, expected))
    return blocks


def run_page(blocks: list[Block]) -> None:
    """Run blocks in the current folder; an AssertionError names the page and the line of what did not work."""
    names: dict[str, Any] = {"__name__": "__main__"}
    known, sys.path[:0] = set(sys.modules), [str(Path.cwd())]  # as for a Python that is started here
    try:
        _run_blocks(blocks, names)
    finally:
        sys.path.remove(str(Path.cwd()))
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(Path.cwd())):
                del sys.modules[name]


def _run_blocks(blocks: list[Block], names: dict[str, Any]) -> None:
    for block in blocks:
        named = NAMED.match(block.text)
        if named and block.language in ("python", "yaml"):
            Path(named[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(named[1]).write_text(block.text, encoding="utf-8")
            continue
        printed = _run_python(block, names) if block.language == "python" else _run_bash(block)
        if block.expected is not None:
            _compare(block, printed)


def _run_python(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            exec(compile(block.text, block.where, "exec"), names)
    except Exception as error:
        raise AssertionError(f"{block.where}: {type(error).__name__}: {error}") from error
    return out.getvalue()


def _run_bash(block: Block) -> str:
    return "".join(_run_command(command, block.where) for command in commands_of(block.text))


def commands_of(text: str) -> Iterator[str]:
    """The commands of a block: lines that a backslash continues are one, comments are none."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command = re.sub(r"(^|\s+)# .*$", "", line).strip()
        if command:
            yield command


def _run_command(command: str, where: str) -> str:
    """`divopd …` runs in this process, which has loaded everything already; the rest in a shell that finds `divopd`."""
    if command.startswith("export "):
        name, _, value = command.removeprefix("export ").partition("=")
        os.environ[name] = os.path.expandvars(value)
        return ""
    words = shlex.split(os.path.expandvars(command))
    if words[0] != "divopd" or SHELL.search(command):
        shell, both = ["bash", "-euo", "pipefail", "-c", command], subprocess.STDOUT  # in the order of a terminal
        done = subprocess.run(shell, stdout=subprocess.PIPE, stderr=both, text=True, env=_shell())
        code, printed = done.returncode, done.stdout
    else:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            code = main(words[1:])
        printed = out.getvalue()
    assert code == 0, f"{where}: `{command}` ended with {code}:\n{printed}"
    return printed


def _shell() -> dict[str, str]:
    """The environment of a shell in which `divopd` is that of this Python."""
    folder = Path("bin").resolve()
    folder.mkdir(exist_ok=True)
    script = folder / "divopd"
    if not script.exists():
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m divopd "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return os.environ | {"PATH": f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _compare(block: Block, printed: str) -> None:
    """Whether the lines of a text block are in what was printed, in that order."""
    assert block.expected is not None
    vary = "figures vary" in block.notes
    pattern = "".join(_pattern(line, vary=vary) for line in block.expected.splitlines())
    lines = "".join(f"{' '.join(line.split())}\n" for line in printed.splitlines())
    told = f"it prints\n{printed}\nthe page shows\n{block.expected}"
    assert re.search(f"^{pattern}", lines, re.MULTILINE), (
        f"{block.where}: it prints something else than the page shows; {told}"
    )


def _pattern(line: str, *, vary: bool) -> str:
    words = " ".join(line.split())
    if words == "…":
        return r"(?:.*\n)*?"
    pattern = re.escape(words).replace("…", ".*?")
    return (re.sub(r"(?:\d+(?:\\\.\d+)?)", r"[\\d.]+", pattern) if vary else pattern) + "\n"
