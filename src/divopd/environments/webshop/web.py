"""Shopping in a browser: the same tasks, pages and actions as the agent's, on a page that only this machine can open.

The page shows the strings the agent reads, with the clickable ones as buttons. It binds to loopback, answers only
requests that name it as Host and carry the token in their path, runs no script, and escapes everything that it shows.
"""

import secrets
from collections.abc import Callable, Sequence
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

from divopd.environments.environment import Observation
from divopd.environments.webshop.engine import Shop, WebShop
from divopd.environments.webshop.goals import HORIZON
from divopd.environments.webshop.pages import FULL, NEXT, SEARCH_ACTION, SHORT, Layout, strings_on

LOOPBACK = "127.0.0.1"
_LONGEST_BODY = 16_384
_PATIENCE_S = 10  # for a browser that opens a connection and sends nothing

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
    secret = token or secrets.token_urlsafe(16)
    server = HTTPServer((LOOPBACK, port), _handler(visit, f"/{secret}/"))
    return server, f"http://{LOOPBACK}:{server.server_port}/{secret}/"


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
    announce(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass  # the usual way to stop it
    finally:
        server.server_close()


def _handler(visit: Visit, path: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            if self._is_welcome():
                self._send(HTTPStatus.OK, render(visit))

        def do_POST(self) -> None:
            if not self._is_welcome():
                return
            length = self.headers.get("Content-Length", "")
            if not (length.isascii() and length.isdigit() and int(length) <= _LONGEST_BODY):
                self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "<p>That request is too large.</p>")
                return
            fields = parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"))
            if "next" in fields:
                visit.next_task()
            elif "query" in fields:
                visit.act(f"search[{fields['query'][0]}]")
            elif "action" in fields:
                visit.act(fields["action"][0])
            self.send_response(HTTPStatus.SEE_OTHER)  # so that reloading the page does not act again
            self.send_header("Location", path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _is_welcome(self) -> bool:
            """Only requests for this very host and token: no other page and no rebound name gets an answer."""
            own_hosts = {f"{name}:{self.connection.getsockname()[1]}" for name in (LOOPBACK, "localhost")}
            if self.headers.get("Host") not in own_hosts:
                self._send(HTTPStatus.FORBIDDEN, "<p>Wrong host.</p>")
                return False
            if not secrets.compare_digest(self.path.encode(), path.encode()):
                self._send(HTTPStatus.NOT_FOUND, "<p>Nothing here: open the address that was printed.</p>")
                return False
            return True

        def _send(self, status: HTTPStatus, body: str) -> None:
            content = body.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header(
                "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"
            )
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: the token is in every path."""

    return Handler


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
