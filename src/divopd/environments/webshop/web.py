"""Shopping in a browser: the same tasks, pages and actions as the agent's, on a page that only this machine can open.

The page shows the strings the agent reads, with the clickable ones as buttons. It runs no script and escapes all that
it shows; loopback.py says who may open it.
"""

from collections.abc import Callable, Sequence
from html import escape
from http import HTTPStatus
from http.server import HTTPServer
from threading import Lock
from urllib.parse import parse_qs

from divopd.environments.environment import Observation
from divopd.environments.webshop.engine import Shop, WebShop
from divopd.environments.webshop.goals import HORIZON
from divopd.environments.webshop.pages import FULL, NEXT, SEARCH_ACTION, SHORT, Layout, strings_on
from divopd.loopback import Handler, listen, serve_until_interrupted

_LONGEST_BODY = 16_384
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"

_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 52rem; padding: 1.5rem; color: #1d2330; }
header { border-bottom: 1px solid #d5d9e2; margin-bottom: 1rem; } h1 { font-size: 1.2rem; } form { display: inline; }
.goal { background: #fff6d6; border-radius: .4rem; padding: .6rem .8rem; } .note { color: #a02020; }
p { margin: .45rem 0; } button { font: inherit; margin: .1rem 0;
  padding: .25rem .7rem; border: 1px solid #8c97ad; border-radius: .4rem; background: #eef2fa; }
button:hover { background: #dbe4f6; } input { font: inherit; padding: .3rem; width: 60%; }
"""


class Visit:
    """One person's walk through the tasks: the environment, what it showed last, and how many turns were used."""

    def __init__(self, shop: Shop, tasks: Sequence[str], *, layout: Layout) -> None:
        self._environment = WebShop(shop, layout=layout)
        self._tasks = list(tasks)
        self._place = -1
        self.next_task()

    def next_task(self) -> None:
        self._place = (self._place + 1) % len(self._tasks)
        self.task = self._tasks[self._place]
        self.instruction = self._environment.shop.goal(self.task).text
        self.observation = self._environment.reset(self.task)
        self.turns = 0

    def act(self, action: str) -> None:
        """Takes a turn, unless the task is over: bought, or no turn left."""
        if not self.is_over:
            self.observation = self._environment.step(action)
            self.turns += 1

    @property
    def is_over(self) -> bool:
        return self.observation.done or self.turns >= HORIZON


def make_server(visit: Visit, *, port: int = 0, token: str | None = None) -> tuple[HTTPServer, str]:
    """A server on loopback and the address to open; port 0 takes a free one. The caller runs and closes it."""
    return listen(_handler(visit), port=port, token=token)


def serve(
    shop: Shop,
    tasks: Sequence[str],
    *,
    layout: Layout = FULL,
    port: int = 0,
    announce: Callable[[str], None] = print,
) -> None:
    """Lets a person shop these tasks in a browser until interrupted; `announce` gets the address to open."""
    server, address = make_server(Visit(shop, tasks, layout=layout), port=port)
    serve_until_interrupted(server, address, announce)


def _handler(visit: Visit) -> type[Handler]:
    visiting = Lock()  # several browsers may look at the one visit

    class Shopping(Handler):
        def do_GET(self) -> None:
            if self._is_here():
                with visiting:
                    page = render(visit)
                self._send_page(HTTPStatus.OK, page)

        def do_POST(self) -> None:
            if not self._is_here():
                return
            length = self.headers.get("Content-Length", "")
            if not (length.isascii() and length.isdigit() and int(length) <= _LONGEST_BODY):
                self._send_page(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "<p>That request is too large.</p>")
                return
            fields = parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"))
            with visiting:
                if "next" in fields:
                    visit.next_task()
                elif "query" in fields:
                    visit.act(f"search[{fields['query'][0]}]")
                elif "action" in fields:
                    visit.act(fields["action"][0])
            # so that reloading the page does not act again
            self.send(HTTPStatus.SEE_OTHER, b"", "text/plain", Location=self.root)

        def _is_here(self) -> bool:
            """There is one page only."""
            if not self.is_welcome():
                return False
            if self.path != self.root:
                self._send_page(HTTPStatus.NOT_FOUND, "<p>Nothing here: open the address that was printed.</p>")
            return self.path == self.root

        def _send_page(self, status: HTTPStatus, body: str) -> None:
            content = body.encode("utf-8", "replace")
            self.send(status, content, "text/html; charset=utf-8", Content_Security_Policy=_POLICY)

    return Shopping


def render(visit: Visit) -> str:
    """The page a person sees. Every string of the shop is escaped."""
    note = "" if visit.observation.valid else '<p class="note">That action is not possible here.</p>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>WebShop</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body><header><h1>WebShop · {escape(visit.task)} · turn {visit.turns} of {HORIZON}</h1>"
        f'<p class="goal">{escape(visit.instruction)}</p></header>{note}{_content(visit, visit.observation)}'
        f"<p>{_button('Next task', name='next', value='1')}</p></body></html>"
    )


def _content(visit: Visit, observation: Observation) -> str:
    if visit.is_over and not observation.done:
        return f'<p class="note">All {HORIZON} turns are used: the task is lost.</p>'
    if SEARCH_ACTION in (observation.allowed_actions or ()):
        return '<form method="post"><input name="query" autofocus required> <button>Search</button></form>'
    told = ("Instruction:", visit.instruction)
    shown = [string for string in strings_on(observation.text) if string not in told]
    return "".join(f"<p>{row}</p>" for row in _rows(shown, observation.allowed_actions or []))


def _rows(strings: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Neighbouring buttons share a row, up to `Next >`, where the results begin; other strings have one each."""
    rows: list[str] = []
    after_button = False
    for string in strings:
        action = f"click[{string.removeprefix(SHORT.chosen_mark).lower()}]"
        is_button = action in allowed
        piece = _button(string, name="action", value=action) if is_button else escape(string)
        if is_button and after_button:
            rows[-1] += " " + piece
        else:
            rows.append(piece)
        after_button = is_button and string != NEXT
    return rows


def _button(label: str, *, name: str, value: str) -> str:
    return f'<form method="post"><button name="{name}" value="{escape(value)}">{escape(label)}</button></form>'
