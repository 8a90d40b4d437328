"""One small game twice: as a class with reset and step, and as an agent program that plays it by chat completions.

    python door_agent.py        plays the task of TASK_FILE with the student behind OPENAI_BASE_URL

It speaks the words of word_model.py. The program imports next to nothing: a test starts dozens of it.
"""

import json
import os
from typing import Any

TASKS = {"train": 7, "test": 5}


def begin(task: str) -> str:
    return f"{task} turn 0"


def go_on(task: str, turn: int, action: str) -> tuple[str, bool]:
    """What is seen after an action, and whether the game is won."""
    return f"{task} turn {turn}", "win" in action.split()


class Doors:
    """The game as an environment."""

    @staticmethod
    def tasks(split: str) -> list[str]:
        return [f"{split}-{number}" for number in range(TASKS[split])]

    def reset(self, task: str) -> Any:
        from divopd.environments import Observation

        self.task, self.turn = task, 0
        return Observation(begin(task))

    def step(self, action: str) -> Any:
        from divopd.environments import Observation

        self.turn += 1
        text, won = go_on(self.task, self.turn, action)
        return Observation(text, done=won, success=won, reward=float(won))


def main() -> None:
    """The game as a program: the whole conversation is sent with every call."""
    with open(os.environ["TASK_FILE"]) as file:
        task = json.load(file)["id"]
    messages, turn = [{"role": "user", "content": begin(task)}], 0
    while True:
        said, turn = complete(messages), turn + 1
        text, won = go_on(task, turn, said)
        if won:
            with open(os.environ["OUTCOME_FILE"], "w") as file:
                json.dump({"success": True, "reward": 1.0}, file)
            return
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": text}]


def complete(messages: list[dict[str, str]]) -> str:
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    address = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = HTTPConnection(str(address.hostname), address.port)
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    connection.request("POST", f"{address.path}/chat/completions", json.dumps({"messages": messages}), headers)
    answer = json.loads(connection.getresponse().read())
    return answer["choices"][0]["message"]["content"]


if __name__ == "__main__":
    main()
