"""A chat template is a program that comes with a model: it is tried with bounds before it is believed.

transformers runs templates in a sandbox, which keeps them from files and code, and neither from loops without end nor
from strings without bound. A template that could make either is first rendered in a process of its own, which may take
so much time and memory and no more.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from divopd.errors import AlignmentError

MAX_TEMPLATE = 100_000  # characters
MAX_RENDERED = 100_000  # characters of four messages of one word
MEMORY_BYTES = 2**30
CPU_S = 3
WAIT_S = 120.0  # of a machine that is busy
# what can neither loop for long nor grow: one loop over the messages, choices, and texts put together
_PLAIN = ("Template", "Output", "TemplateData", "If", "Compare", "Operand", "Const", "Name", "Getattr", "Getitem")
_PLAIN_TOO = ("Add", "And", "Or", "Not", "For")
_CHILD = """
import json, resource, sys
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

class Generation(Extension):
    tags = {"generation"}
    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)

given = json.load(sys.stdin)
for kind, most in ((resource.RLIMIT_AS, given["memory"]), (resource.RLIMIT_CPU, given["cpu_s"])):
    resource.setrlimit(kind, (most, most))
env = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
)
env.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
env.globals["strftime_now"] = lambda form: "2026-01-01"
def refuse(message):
    sys.exit(0)  # transformers asks again, and tells the reason
env.globals["raise_exception"] = refuse
try:
    text = env.from_string(given["template"]).render(
        messages=given["messages"], add_generation_prompt=True, **given["special"], **given["arguments"]
    )
except (MemoryError, RecursionError, OverflowError):
    sys.exit(3)
except Exception:
    sys.exit(0)  # a mistake, not a bomb: transformers meets it again, and its words are told
sys.exit(3 if len(text) > given["longest"] else 0)
"""


def check_template(
    template: str, messages: list[dict[str, str]], *, special: dict[str, str], arguments: dict[str, Any]
) -> None:
    """AlignmentError for a template that takes too long or too much for these messages. Its other errors are not told:
    whoever renders it hears of them."""
    if len(template) > MAX_TEMPLATE:
        raise AlignmentError(f"the chat template has {len(template):,} characters; expected at most {MAX_TEMPLATE:,}")
    if not is_plain(template):
        task = {"template": template, "messages": messages, "special": special, "arguments": arguments}
        if not _ends_well(json.dumps(task, sort_keys=True, default=str)):
            raise AlignmentError(
                f"the chat template takes more than {CPU_S} s, {MEMORY_BYTES // 2**20} MB or {MAX_RENDERED:,} "
                "characters for four messages of one word; expected that of a model you trust"
            )


def is_plain(template: str) -> bool:
    """Whether a template can neither loop for long nor grow."""
    from jinja2 import Environment, TemplateError, nodes

    try:
        tree = Environment().parse(template)
    except (TemplateError, RecursionError):
        return False
    loops = list(tree.find_all(nodes.For))
    return (
        all(type(node).__name__ in (*_PLAIN, *_PLAIN_TOO) for node in _nodes(tree))
        and len(loops) <= 1
        and all(isinstance(loop.iter, nodes.Name) and loop.iter.name == "messages" for loop in loops)
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for below in node.iter_child_nodes():
        yield from _nodes(below)


@lru_cache(maxsize=16)
def _ends_well(task: str) -> bool:
    bounds = {"memory": MEMORY_BYTES, "cpu_s": CPU_S, "longest": MAX_RENDERED}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD],
            input=json.dumps(json.loads(task) | bounds),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=WAIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
