"""A page that only this machine can open: served on loopback, and only to who knows the token in its address.

Every request must name the server as its Host and begin its path with the token, so that no other page and no rebound
name gets an answer. What is sent is neither kept nor told on to other sites.
"""

import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

from divopd.errors import InputError

LOOPBACK = "127.0.0.1"


class Handler(BaseHTTPRequestHandler):
    """Answers requests of those who are welcome; `listen` gives it its root, /TOKEN/."""

    root = "/"
    timeout = 10  # seconds, for a browser that opens a connection and sends nothing

    @property
    def place(self) -> str:
        """The path that is asked for, as it was sent, without the query."""
        return self.path.partition("?")[0]

    def is_welcome(self) -> bool:
        """Whether this request may be answered; otherwise it has been refused."""
        own_hosts = {f"{name}:{self.connection.getsockname()[1]}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host") not in own_hosts:
            self.send(HTTPStatus.FORBIDDEN, b"wrong host", "text/plain")
            return False
        begin = self.place[: len(self.root)]
        if not secrets.compare_digest(begin.encode(), self.root.encode()):
            self.send(HTTPStatus.NOT_FOUND, b"nothing here: open the address that was printed", "text/plain")
            return False
        return True

    def send(self, status: HTTPStatus, content: bytes, kind: str, **headers: str) -> None:
        """A whole answer; `headers` come besides those that every answer has, with _ for -."""
        self.send_response(status)
        always = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in (always | {name.replace("_", "-"): value for name, value in headers.items()}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the token is in every path."""


class Server(ThreadingMixIn, HTTPServer):
    """One thread a request: nobody waits for a browser that is slow. One that leaves is nothing to complain about."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def listen(handler: type[Handler], *, port: int, token: str | None) -> tuple[Server, str]:
    """A server on loopback and the address to open; port 0 takes a free one. The caller runs and closes it."""
    secret = token or secrets.token_urlsafe(16)
    handler.root = f"/{secret}/"
    try:
        made = Server((LOOPBACK, port), handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"--port {port}: cannot listen there ({error}); choose another one, or none") from None
    return made, f"http://{LOOPBACK}:{made.server_port}/{secret}/"


def serve_until_interrupted(server: HTTPServer, address: str, announce: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `announce` gets the address to open."""
    announce(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass  # the usual way to stop it
    finally:
        server.server_close()
