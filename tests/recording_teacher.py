"""A teacher behind an OpenAI-compatible server that writes down all that it is asked. It needs no model.

Its log probability of a token depends on every token before it, so a single wrong token of a prompt shows; and it is a
plain function, so a test can say what the right answer was.
"""

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

Logprobs = Callable[[Sequence[int]], list[float]]


def some_logprobs(ids: Sequence[int]) -> list[float]:
    """A number between -3 and -1 for every token, by the token and all that stand before it."""
    values, state = [], 0
    for token in ids:
        state = crc32(int(token).to_bytes(4, "little"), state)
        values.append(-1.0 - 2.0 * (state % 1000) / 1000)
    return values


class RecordingTeacher:
    """Serves the model `teacher` at `url` until it is stopped; a context manager.

    `scored` are the token ids that it was asked to score, `acted` the requests in which it was to act (`prompt`,
    `temperature`, `max_tokens`, `seed`). It always acts with the same `response` ids. When `answer` has None to say, it
    hangs up.
    """

    def __init__(self, response: Sequence[int], logprobs: Logprobs = some_logprobs) -> None:
        self.response, self.logprobs = list(response), logprobs
        self.scored: list[list[int]] = []
        self.acted: list[dict[str, Any]] = []
        teacher = self

        class Handler(_Handler):
            ask = staticmethod(lambda body: teacher.answer(body))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "RecordingTeacher":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The choice of a completion, as vLLM writes it."""
        ids, response = body["prompt"], self.response[: body["max_tokens"]]
        choice: dict[str, Any] = {"index": 0, "text": "", "prompt_token_ids": ids, "token_ids": response}
        if body.get("prompt_logprobs") is None:
            self.acted.append(body)
            choice["logprobs"] = {"token_logprobs": self.logprobs([*ids, *response])[len(ids) :]}
        else:
            self.scored.append(ids)
            pairs = zip(ids, self.logprobs(ids), strict=True)
            choice["prompt_logprobs"] = [None, *[{str(token): {"logprob": value}} for token, value in pairs][1:]]
        return choice


class SglangTeacher(RecordingTeacher):
    """The same behind SGLang's own endpoint, with answers in the shape that its documentation shows."""

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Triples of log probability, id and text; the first prompt token that it tells of has no probability."""
        ids, wish = body["input_ids"], body["sampling_params"]
        response, start = self.response[: wish["max_new_tokens"]], body["logprob_start_len"]
        values = self.logprobs([*ids, *response])
        output = [[value, token, None] for value, token in zip(values[len(ids) :], response, strict=True)]
        meta: dict[str, Any] = {"id": "0", "prompt_tokens": len(ids), "completion_tokens": len(response)}
        meta |= {"output_token_logprobs": output, "input_token_logprobs": []}
        if start >= 0:
            told = [[value, token, None] for value, token in zip(values, ids, strict=False)]
            meta["input_token_logprobs"] = [[None, ids[start], None], *told[start + 1 :]]
        (self.acted if response else self.scored).append(body if response else ids)  # type: ignore[arg-type]
        return {"text": "", "output_ids": response, "meta_info": meta}


class _Handler(BaseHTTPRequestHandler):
    ask: Callable[[dict[str, Any]], dict[str, Any] | None]

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "teacher", "max_model_len": 1024}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choice = self.ask(body)
        if choice is not None:
            own = self.path == "/generate"  # SGLang's endpoint, which is not below /v1
            self._send(choice if own else {"object": "text_completion", "choices": [choice]})

    def _send(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are silent."""
