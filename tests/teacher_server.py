"""An OpenAI-compatible server on loopback that answers as vLLM does, with the numbers of a real model."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from divopd.models.transformers_policy import TransformersPolicy

CONTEXT = 1024


class TeacherServer:
    """Serves a policy as the model `teacher`. It can be stopped and started again at the same address.

    `change` alters the choice of every completion before it is sent; `status` answers all of them with an error. Those
    completions whose numbers are in `cut` break off in the middle. `spoil` gets the body of every request and the whole
    answer, with its headers, and may return other bytes to send, part by part, in its place.
    """

    def __init__(self, policy: TransformersPolicy) -> None:
        self.policy = policy
        self.change: Any = lambda choice: choice
        self.status = 200
        self.delay_s = 0.0
        self.cut: set[int] = set()
        self.spoil: Callable[[dict[str, Any], bytes], Iterable[bytes] | None] = lambda body, answer: None
        self.requests: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        serving = self

        class Handler(_Handler):
            teacher = serving

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def complete(self, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """One choice, with the log probabilities that were asked for, and the number of the request."""
        ids = body["prompt"]
        choice: dict[str, Any] = {"index": 0, "text": "…", "logprobs": None, "prompt_logprobs": None}
        if body.get("return_token_ids"):
            choice["prompt_token_ids"] = ids
        with self._lock:
            self.requests.append(body)
            number = len(self.requests)
            if body.get("prompt_logprobs") is not None:
                [[values]] = self.policy.score([ids], [[(1, len(ids))]])
                said = [{str(i): {"logprob": v, "rank": 1}} for i, v in zip(ids[1:], values.tolist(), strict=True)]
                choice["prompt_logprobs"] = [None, *said]
            [response] = self.policy.respond(
                [ids], temperature=body["temperature"], max_tokens=body["max_tokens"], seeds=[body.get("seed", 0)]
            )
        if body.get("return_token_ids"):
            choice["token_ids"] = response.ids
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": response.logprobs.tolist()}
        return self.change(choice), number


class _Handler(BaseHTTPRequestHandler):
    teacher: TeacherServer

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "teacher", "max_model_len": CONTEXT}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.teacher.delay_s)
        size = self.teacher.policy.model.config.vocab_size
        if self.teacher.status != 200:
            self._send(self.teacher.status, {"error": {"message": "not\ntoday " + "x" * 1000}})
        elif body["model"] != "teacher" or max(body["prompt"]) >= size:
            self._send(400, {"error": {"message": f"a token id is out of vocabulary {size}"}})
        else:
            choice, number = self.teacher.complete(body)
            answer = {"object": "text_completion", "choices": [choice]}
            data = json.dumps(answer).encode()
            whole = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
            parts = self.teacher.spoil(body, whole)
            if parts is None:
                self._send(200, answer, cut=number in self.teacher.cut)
            with suppress(OSError):  # the other side may hang up first
                for part in parts or ():
                    self.wfile.write(part)

    def _send(self, status: int, answer: dict[str, Any], *, cut: bool = False) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are silent."""
