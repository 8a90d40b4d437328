"""An agent program for tests of single config keys: it asks four times and ends.

    python key_agent.py WORDS [deaf]

Its first question is its WORDS. It offers a tool, and asks without where that is refused. One that is deaf breaks off
the connection of every other call before it hears the answer.
"""

import json
import os
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

TOOL = {"type": "function", "function": {"name": "lift", "description": "Lifts.", "parameters": {"type": "object"}}}


def send(body: dict[str, Any]) -> socket.socket:
    address = urlsplit(os.environ["OPENAI_BASE_URL"])
    text = json.dumps(body).encode()
    head = (
        f"POST {address.path}/chat/completions HTTP/1.0\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    connection = socket.create_connection((str(address.hostname), address.port or 80))
    connection.sendall(head.encode() + text)
    return connection


def heard(connection: socket.socket) -> str:
    with connection, connection.makefile("rb") as answer:
        return answer.read().decode()


def main(words: str, *more: str) -> None:
    with open(os.environ["TASK_FILE"]) as file:
        task = json.load(file)["id"]
    for number in range(4):
        body = {"messages": [{"role": "user", "content": f"{words} {task} {number}"}]}
        if "deaf" in more and number % 2:
            send(body).close()
        elif " 200 " not in heard(send(body | {"tools": [TOOL]})).splitlines()[0]:
            heard(send(body))


if __name__ == "__main__":
    main(*sys.argv[1:])
