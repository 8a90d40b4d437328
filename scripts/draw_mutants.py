"""Draw bugs by chance: small changes of the source, one a patch, for `make mutants` (scripts/mutants.py).

A site is a place where one of the operators below can change the code; SEED draws DRAWS of all sites with equal
chance. Seed and number were committed before the first draw, and nothing is drawn again: a bug that no test notices
needs a test, or a proof that it changes nothing. The commit whose sites were drawn stands in every patch.

    python scripts/draw_mutants.py                   list what is drawn from HEAD
    python scripts/draw_mutants.py --write           the patches, into tests/mutants
    python scripts/draw_mutants.py --seed 1 --count 5    try the operators with another seed; nothing is written
"""

import argparse
import ast
import difflib
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "mutants"
SEED = 4711
DRAWS = 66
DRAWN_FROM = ("pipeline", "explorer", "evaluation", "curricula", "recovery", "methods", "run", "metrics")
# it cannot be imported without Ray, which `make setup` does not install, and each of its tests takes minutes
LEFT_OUT = ("src/divopd/pipeline/on_ray.py",)

Span = tuple[int, int]  # of bytes, as ast counts
Change = tuple[str, Span, str]  # operator, what is replaced, by what

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}
SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: r"is\s+not",
    ast.In: "in",
    ast.NotIn: r"not\s+in",
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Site:
    """A place in a file, and what an operator makes of it."""

    path: str
    line: int
    column: int
    operator: str
    before: str
    after: str
    span: Span

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}"
        return f"{place} {self.operator}: {_one_line(self.before)} -> {_one_line(self.after)}"

    def applied(self, source: str) -> str:
        content, (start, end) = source.encode(), self.span
        return (content[:start] + self.after.encode() + content[end:]).decode()


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "nothing"


# ── sites ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def sites_of(path: str, source: str) -> list[Site]:
    """All sites of a file, in its order."""
    content, tree = source.encode(), ast.parse(source)
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[Change, Site] = {}
    for node in _changed_nodes(tree):
        for operator, (start, end), after in _changes(node, content, _spans(starts)):
            line = next(number for number, begin in enumerate(starts) if begin > start)
            column = start - starts[line - 1]
            site = Site(path, line, column, operator, content[start:end].decode(), after, (start, end))
            if site.after != site.before:
                found.setdefault((operator, site.span, after), site)
    return sorted(found.values(), key=lambda site: (site.span, site.operator, site.after))


def _changed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but annotations, decorators, asserts, and what is only said (f-strings) or only for a type checker."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Assert | ast.JoinedStr) or _is_typing(child):
                continue
            yield child
            yield from _changed_nodes(child)


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _spans(starts: list[int]) -> Callable[[ast.AST], Span]:
    def span(node: ast.AST) -> Span:
        place: dict[str, int] = vars(node)
        start = starts[place["lineno"] - 1] + place["col_offset"]
        return start, starts[place["end_lineno"] - 1] + place["end_col_offset"]

    return span


# ── operators ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _changes(node: ast.AST, content: bytes, span: Callable[[ast.AST], Span]) -> Iterator[Change]:
    """What the operators make of a node."""

    def text(part: ast.AST) -> str:
        start, end = span(part)
        return content[start:end].decode()

    def between(left: ast.AST, right: ast.AST, pattern: str) -> Span:
        """Where an operator stands; parentheses and blanks may stand there, too."""
        start, end = span(left)[1], span(right)[0]
        found = re.search(pattern.encode(), content[start:end])
        assert found is not None, f"no {pattern} in {content[start:end]!r}"
        return start + found.start(), start + found.end()

    match node:
        case ast.Compare():
            for operation, (left, right) in zip(node.ops, pairwise([node.left, *node.comparators]), strict=True):
                for other in COMPARISONS[type(operation)]:
                    yield "compare", between(left, right, SYMBOLS[type(operation)]), other
        case ast.BoolOp():
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in pairwise(node.values):
                yield "and-or", between(left, right, word), other
        case ast.UnaryOp(op=ast.Not()):
            yield "not", span(node), f"({text(node.operand)})"
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            symbol, other = ARITHMETIC[type(node.op)]
            yield "arithmetic", between(node.left, node.right, re.escape(symbol)), other
        case ast.AugAssign() if type(node.op) in ARITHMETIC:
            symbol, other = ARITHMETIC[type(node.op)]
            yield "arithmetic", between(node.target, node.value, re.escape(symbol)), other
            yield "statement", span(node), "pass"
        case ast.Constant(value=bool() as value):
            yield "constant", span(node), str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", span(node), repr(value + 1)
        case ast.If():
            yield "condition", span(node.test), f"not ({text(node.test)})"
            yield "body", span(node.test), "False"
        case ast.IfExp():
            yield "condition", span(node.test), f"not ({text(node.test)})"
        case ast.comprehension():
            for condition in node.ifs:
                yield "condition", span(condition), f"not ({text(condition)})"
        case ast.Return() if node.value is not None:
            yield "return", span(node), "return None"
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Break() | ast.Continue():
            yield "statement", span(node), "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "statement", span(node), "pass"
        case ast.Call():
            yield from _call_changes(node, text, span)


def _call_changes(node: ast.Call, text: Callable[[ast.AST], str], span: Callable[[ast.AST], Span]) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
        yield "opposite", span(node.func), OPPOSITES[node.func.id]
    if len(node.args) >= 2 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
        first, second = node.args[:2]
        start, end = span(first)[0], span(second)[1]
        middle = text(node).encode()[span(first)[1] - span(node)[0] : span(second)[0] - span(node)[0]].decode()
        yield "arguments", (start, end), f"{text(second)}{middle}{text(first)}"


# ── the draw ──────────────────────────────────────────────────────────────────────────────────────────────────────


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def sources_at(commit: str) -> dict[str, str]:
    """The files from which bugs are drawn, as they were at a commit."""
    places = [f"src/divopd/{name}{end}" for name in DRAWN_FROM for end in ("", ".py")]
    paths = git("ls-tree", "-r", "--name-only", commit, "--", *places).split()
    wanted = (path for path in sorted(paths) if path.endswith(".py") and path not in LEFT_OUT)
    return {path: git("show", f"{commit}:{path}") for path in wanted}


def draw(sources: dict[str, str], *, seed: int, count: int) -> list[Site]:
    """So many of all sites, each with the same chance."""
    sites = [site for path, source in sources.items() for site in sites_of(path, source)]
    return random.Random(seed).sample(sites, count)


def patch_of(site: Site, source: str, *, drawn: str) -> str:
    lines = source.splitlines(keepends=True), site.applied(source).splitlines(keepends=True)
    difference = difflib.unified_diff(*lines, f"a/{site.path}", f"b/{site.path}")
    line = lines[0][site.line - 1].strip()
    bug = f"Bug: {_one_line(site.before)} became {_one_line(site.after)} in {line}\n"
    return f"{bug}Drawn: {drawn}\n{''.join(difference)}"


def drawn_line(site: Site, number: int, *, base: str) -> str:
    return f"{number} with seed {SEED} from {base}, {site}"


def name_of(site: Site, number: int) -> str:
    return f"{number:03d}-{Path(site.path).stem.replace('_', '-')}-{site.operator}.patch"


def write(base: str) -> int:
    """The patches of the one draw; if there are some already, nothing is written."""
    if any("\nDrawn: " in path.read_text(encoding="utf-8") for path in PATCHES.glob("*.patch")):
        print("draw_mutants: tests/mutants has drawn patches already, and nothing is drawn again", file=sys.stderr)
        return 1
    sources = sources_at(base)
    for number, site in enumerate(draw(sources, seed=SEED, count=DRAWS), 1):
        patch = patch_of(site, sources[site.path], drawn=drawn_line(site, number, base=base))
        (PATCHES / name_of(site, number)).write_text(patch, encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", metavar="COMMIT", help="draw from its sources (default HEAD)")
    parser.add_argument("--write", action="store_true", help="write the patches, once")
    parser.add_argument(
        "--seed", type=int, default=SEED, help="another seed, to try the operators (default %(default)s)"
    )
    parser.add_argument("--count", type=int, default=DRAWS, metavar="N", help="how many (default %(default)s)")
    args = parser.parse_args()
    if args.write and (args.seed, args.count) != (SEED, DRAWS):
        parser.error(f"only seed {SEED} with {DRAWS} draws is written")
    base = git("rev-parse", "--verify", f"{args.base}^{{commit}}").strip()
    if args.write:
        return write(base)
    for number, site in enumerate(draw(sources_at(base), seed=args.seed, count=args.count), 1):
        print(number, site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
