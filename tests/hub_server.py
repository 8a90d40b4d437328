"""A Hugging Face Hub on loopback, as far as its client asks: revisions, the list of files, the files themselves."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class HubServer:
    """Serves a folder as the repository `owner/name` with one commit, known by that and by the tag `v1`.

    `asked` has the path of every request for a file, so that a test sees what was downloaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = "c0ffee" * 6 + "0123"
        self.asked: list[str] = []
        hub = self

        class Handler(_Handler):
            server_of = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def tree(self) -> list[dict[str, object]]:
        files = sorted(file for file in self.folder.rglob("*") if file.is_file())
        return [
            {"type": "file", "path": str(file.relative_to(self.folder)), "size": file.stat().st_size, "oid": _id(file)}
            for file in files
        ]


def _id(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server_of: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.server_of, unquote(urlsplit(self.path).path)
        known = {"v1", hub.commit}
        if path in {f"/api/models/owner/name/revision/{revision}" for revision in known}:
            siblings = [{"rfilename": entry["path"]} for entry in hub.tree()]
            self._send(json.dumps({"id": "owner/name", "sha": hub.commit, "siblings": siblings}).encode(), with_body)
        elif path == f"/api/models/owner/name/tree/{hub.commit}":
            self._send(json.dumps(hub.tree()).encode(), with_body)
        elif path.startswith("/api/models/owner/name/revision/"):
            self._refuse("RevisionNotFound")
        elif path.startswith("/owner/name/resolve/"):
            self._send_file(path.removeprefix("/owner/name/resolve/"), with_body)
        else:
            self._refuse("RepoNotFound")

    def _send_file(self, place: str, with_body: bool) -> None:
        revision, _, name = place.partition("/")
        file = self.server_of.folder / name
        if revision not in {"v1", self.server_of.commit} or not file.is_file():
            self._refuse("EntryNotFound")
            return
        if with_body:
            self.server_of.asked.append(name)
        self._send(file.read_bytes(), with_body, {"X-Repo-Commit": self.server_of.commit, "ETag": f'"{_id(file)}"'})

    def _send(self, body: bytes, with_body: bool, headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
