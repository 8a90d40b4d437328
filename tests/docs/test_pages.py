"""Every code block of docs/ that can run is run, and prints what the page shows below it."""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from blocks import Block, blocks_of, commands_of, run_page

from divopd.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# the other pages are made by programs or have no code: of these, commands and options are looked up
OURS = ("../README.md", "index.md", "cluster.md", "scale.md", "speed.md", "concepts", "tutorials", "howto", "decisions")
PAGES = sorted(path for one in OURS for path in ((DOCS / one).rglob("*.md") if (DOCS / one).is_dir() else [DOCS / one]))
SERVER = "127.0.0.1:8000"  # where pages have a teacher
IN_FOLDER = ("configs", "examples")  # a reader is at the root of a clone


def split_at_slow(page: Path) -> tuple[list[Block], list[Block]]:
    """The blocks that the default tests run, and all that run: what is slow needs what came before it."""
    running = [block for block in blocks_of(page) if block.runs]
    slow = next((place for place, block in enumerate(running) if "slow" in block.notes), len(running))
    return running[:slow], running if slow < len(running) else []


def name_of(page: Path) -> str:
    return page.resolve().relative_to(ROOT).as_posix().removeprefix("docs/")


def pages(which: Callable[[Path], list[Block]]) -> list[object]:
    return [pytest.param(page, id=name_of(page)) for page in PAGES if which(page)]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader has it, without the source."""
    for name in IN_FOLDER:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.mark.parametrize("page", pages(lambda page: split_at_slow(page)[0]))
def test_the_blocks_of_a_page_run(page: Path, clone: Path) -> None:
    """In order, in one folder, and what they print is on the page."""
    run_page(split_at_slow(page)[0])


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(lambda page: split_at_slow(page)[1]))
def test_all_blocks_of_a_page_run(page: Path, clone: Path) -> None:
    """Also those that train. Where a page speaks to a teacher at SERVER, the embedded one answers, at a free port."""
    blocks = split_at_slow(page)[1]
    if not any(SERVER in block.text for block in blocks):
        run_page(blocks)
        return
    from divopd.models.model_files import model_folder
    from divopd.models.transformers_policy import TransformersPolicy
    from teacher_server import TeacherServer

    server = TeacherServer(TransformersPolicy.load(model_folder("embedded:teacher")))
    try:
        run_page([replace(block, text=block.text.replace(SERVER, f"127.0.0.1:{server.port}")) for block in blocks])
        assert server.requests, "nothing was asked of the teacher"
    finally:
        server.stop()


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_a_block_that_does_not_run_says_why(page: Path) -> None:
    """A block has a language that the runner knows, or a comment with the reason; text is no place for commands."""
    blocks = blocks_of(page)
    printed = {block.expected for block in blocks if block.runs}
    for block in blocks:
        why = [note for note in block.notes if note.startswith("not run: ")]
        is_output = block.text in printed
        known = block.language in ("bash", "python", "yaml", "text", "json", "{toctree}", "{raw}")
        assert known, (
            f"{block.where}: the language {block.language!r} is not known; expected bash, python, yaml or text"
        )
        hidden = [line for line in block.text.splitlines() if re.match(r"(\$ )?(divopd [a-z]|make |pip )", line)]
        assert block.language != "text" or is_output or not hidden, (
            f"{block.where}: a command in a text block is never run: {hidden}; make it bash"
        )
        assert not why or len(why[0]) > len("not run: a reason"), f"{block.where}: {why}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_command_exists(page: Path) -> None:
    """Every `divopd …` of a block, run or not, is a command, and every `--option` in it is one of its own."""
    blocks = blocks_of(page)
    printed = {block.expected for block in blocks if block.runs}
    for block in blocks:
        for command in commands_of(block.text) if block.text not in printed else ():
            for part in re.findall(r"(?:^|&& |\| |\$ )divopd ([a-z]+)((?: [^|&>]*)?)", command):
                name, rest = part
                assert name in COMMANDS, f"{block.where}: `{command}`: there is no `divopd {name}`"
                unknown = [word for word in options_of(rest) if word not in known_options(name)]
                assert not unknown, f"{block.where}: `{command}`: `divopd {name}` has no {', '.join(unknown)}"


def options_of(text: str) -> list[str]:
    try:
        return [word.partition("=")[0] for word in shlex.split(text) if word.startswith("--")]
    except ValueError:  # a quotation that goes on in another line
        return []


def known_options(name: str) -> set[str]:
    import argparse

    parser = argparse.ArgumentParser()
    import_module(f"divopd.cli.{name}").add_arguments(parser)
    return {option for action in parser._actions for option in action.option_strings}
