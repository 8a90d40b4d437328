"""What the source says about its own names: docstrings, the comment behind a field, signatures. Nothing is imported."""

import ast
import inspect
import io
import tokenize
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "divopd"


@dataclass(frozen=True)
class FieldText:
    """A field of a class as it is written."""

    name: str
    kind: str
    default: str | None
    meaning: str  # the docstring below it or the comment behind it; empty if there is neither


class Module:
    """One source file, by its dotted name inside the package (`composers.composer`; `` is the package itself)."""

    def __init__(self, name: str) -> None:
        path = SOURCE.joinpath(*name.split(".")) if name else SOURCE
        self.path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        text = self.path.read_text(encoding="utf-8")
        self.tree = ast.parse(text)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self._comments = {
            token.start[0]: token.string[1:].strip() for token in tokens if token.type == tokenize.COMMENT
        }

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    def find(self, name: str) -> ast.ClassDef | ast.FunctionDef | None:
        """The class or function of this name."""
        return next((node for node in self._named() if node.name == name), None)

    def public(self) -> list[str]:
        """Classes and functions of this file whose names do not begin with an underscore, in the order of the file."""
        return [node.name for node in self._named() if not node.name.startswith("_")]

    def _named(self) -> list[ast.ClassDef | ast.FunctionDef]:
        return [node for node in self.tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]

    def exported(self) -> dict[str, str]:
        """What `__all__` names and the file imports: name → dotted module inside the package."""
        names = {alias.name: _inside(node.module) for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)
                 and node.module and node.module.startswith("divopd.") for alias in node.names}  # fmt: skip
        return {name: names[name] for name in self._all() if name in names}

    def _all(self) -> list[str]:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return ast.literal_eval(node.value)
        return []

    def fields(self, name: str) -> list[FieldText]:
        """The fields of a dataclass, a section or a named tuple, in order; a function has none."""
        node = self.find(name)
        if not isinstance(node, ast.ClassDef):
            return []
        found: list[FieldText] = []
        for place, one in enumerate(node.body):
            if (
                isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and not one.target.id.startswith("_")
            ):
                default = ast.unparse(one.value) if one.value else None
                meaning = _string(node.body[place + 1 : place + 2]) or self._comments.get(one.end_lineno or 0, "")
                found.append(FieldText(one.target.id, ast.unparse(one.annotation), default, meaning))
        return found

    def docstring_of(self, name: str) -> str:
        node = self.find(name)
        return (ast.get_docstring(node) or "") if node else ""

    def signature(self, name: str) -> str:
        """`name(arguments) -> result`, as it is written; of a class, how one is made if it says so."""
        node = self.find(name)
        if isinstance(node, ast.FunctionDef):
            return _signature(node, name)
        assert isinstance(node, ast.ClassDef)
        made = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
        if made is not None:
            return _signature(made, name).removesuffix(" -> None")
        return f"class {name}"

    def methods(self, name: str) -> list[tuple[str, str]]:
        """Signature and docstring of the public methods of a class; a function has none."""
        node = self.find(name)
        if not isinstance(node, ast.ClassDef):
            return []
        return [
            (_signature(one, one.name), ast.get_docstring(one) or "")
            for one in node.body
            if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")
        ]


@cache
def module(name: str) -> Module:
    """Each file is read once."""
    return Module(name)


def has_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _inside(dotted: str) -> str:
    return dotted.removeprefix("divopd.")


def _string(nodes: list[ast.stmt]) -> str:
    """The docstring that stands right below a field."""
    if nodes and isinstance(nodes[0], ast.Expr) and isinstance(nodes[0].value, ast.Constant):
        text = nodes[0].value.value
        return inspect.cleandoc(text) if isinstance(text, str) else ""
    return ""


def _signature(node: ast.FunctionDef, name: str) -> str:
    arguments = ast.unparse(node.args)
    arguments = arguments.removeprefix("self, ").removeprefix("cls, ")
    if arguments in ("self", "cls"):
        arguments = ""
    if any(ast.unparse(mark) == "property" for mark in node.decorator_list):
        return f"{name}: {ast.unparse(node.returns)}" if node.returns else name
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({arguments}){result}"
