"""A server on loopback that sends whatever bytes a test wants, when it wants: what no HTTP library would send."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

Bytes = Iterator[bytes]


def with_length(data: bytes, *, status: str = "200 OK") -> bytes:
    """A whole answer that says how long it is."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def in_chunks(data: bytes, *, size: int = 7) -> bytes:
    """A whole answer in chunks."""
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    chunks = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def until_the_end(data: bytes) -> bytes:
    """An answer whose end only the end of the connection tells."""
    return b"HTTP/1.0 200 OK\r\n\r\n" + data


def completion(ids: list[int], **changes: Any) -> bytes:
    """What a teacher should say of these prompt tokens: each has the log probability -1, and the next is token 5."""
    said = [None, *({str(token): {"logprob": -1.0}} for token in ids[1:])]
    choice = {
        "prompt_token_ids": ids,
        "prompt_logprobs": said,
        "token_ids": [5],
        "logprobs": {"token_logprobs": [-1.0]},
    }
    return json.dumps({"choices": [choice | changes]}).encode()


class RawServer:
    """Answers every completion with the parts of `answer(body)`, and then hangs up; a context manager.

    `models` is its answer to who asks for the list of them. `over` is set when it is to stop: for whoever waits.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Bytes]) -> None:
        self.answer, self.over, self.asked = answer, threading.Event(), 0
        self.models = with_length(b'{"data": [{"id": "teacher"}]}')
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def __enter__(self) -> "RawServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listening.close()
        for thread in self._threads[1:]:
            thread.join()

    def _listen(self) -> None:
        with suppress(OSError):  # it is over
            while True:
                connection, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file, suppress(OSError):  # the other side may hang up first
            connection.settimeout(60)
            path, headers = file.readline().split()[1], dict[bytes, bytes]()
            while line := file.readline().strip():
                name, _, value = line.partition(b":")
                headers[name.lower()] = value
            body = file.read(int(headers.get(b"content-length", 0)))
            if path.endswith(b"/models"):
                connection.sendall(self.models)
                return
            self.asked += 1
            for part in self.answer(json.loads(body)):
                connection.sendall(part)
                if self.over.is_set():
                    return
