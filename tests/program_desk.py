"""A desk at which a test is the program: it gets a base url and a key, and its calls are answered by a tiny student.

The process that the pool starts only writes down what it was given and waits for a file: the calls come from the test
itself, through a real client. Rollouts are played by the real player, in a thread of its own.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from divopd.environments.programs.pool import ProgramPool
from divopd.explorer import Acting, Played, Start
from divopd.models.policy import Response
from divopd.models.tiny import TinySize, build_model, build_tokenizer
from divopd.models.transformers_policy import TransformersPolicy
from divopd.player import Player
from divopd.program_rollout import Programs
from divopd.prompts import Codec, PromptStyle
from divopd.prompts.chat import Chat
from divopd.store import CallAttempt, Store, read_attempts

SIZE = TinySize(hidden=32, layers=1, heads=2, key_value_heads=1, feed_forward=64, context=8192)
WAITER = (
    'id=$(sed "s/.*\\"id\\": \\"\\([a-z0-9-]*\\)\\".*/\\1/" "$TASK_FILE"); '
    'echo "hello from $id"; '
    'printf "%s\\n%s\\n%s" "$OPENAI_BASE_URL" "$OPENAI_API_KEY" "$OUTCOME_FILE" > "$0/$id.part"; '
    'mv "$0/$id.part" "$0/$id"; until [ -e "$0/$id.done" ]; do sleep 0.01; done'
)
TOOL = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Opens a door.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


def make_student(seed: int = 0) -> TransformersPolicy:
    """A student of a few thousand weights that says anything at all; every text is tokens to it."""
    tokenizer = build_tokenizer(["open the door and say which number it has"] * 2)
    return TransformersPolicy(build_model(tokenizer, seed=seed, size=SIZE), tokenizer)


def wait_for(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Until the condition holds; it is an error if the time runs out before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Scripted:
    """A student whose next answers are told to it; what they are worth to it is computed by its weights."""

    def __init__(self, policy: Any, codec: Codec) -> None:
        self.policy, self.codec = policy, codec
        self.script: deque[str] = deque()
        self.asked: list[dict[str, Any]] = []
        self._told: list[tuple[Hashable, Response]] = []
        self.held = Event()
        self.held.set()

    def add(self, key: Hashable, prompt: Sequence[int], *, temperature: float, max_tokens: int, seed: int) -> None:
        self.asked.append({"prompt": list(prompt), "temperature": temperature, "max_tokens": max_tokens, "seed": seed})
        if not self.script:
            self.policy.add(key, prompt, temperature=temperature, max_tokens=max_tokens, seed=seed)
            return
        ids = self.codec.response_ids(self.script.popleft())
        [[scores]] = self.policy.score([[*prompt, *ids]], [[(len(prompt), len(prompt) + len(ids))]])
        self._told.append((key, Response(ids, np.asarray(scores))))

    def step(self) -> list[tuple[Hashable, Response]]:
        if not self.held.is_set():
            time.sleep(0.005)
            return []
        told, self._told = self._told, []
        return told + (self.policy.step() if self.policy.pending else [])

    @property
    def pending(self) -> int:
        return len(self._told) + self.policy.pending


@dataclass(frozen=True)
class Seat:
    """What a program is given."""

    base_url: str
    key: str
    outcome: Path
    folder: Path
    task: str

    def leave(self, **outcome: Any) -> None:
        """The program ends, after writing down its outcome if there is one."""
        if outcome:
            self.outcome.write_text(json.dumps(outcome))
        (self.folder / f"{self.task}.done").touch()


class Desk:
    """Plays programs until it is closed. `student` may be told what to answer; rollouts that ended are in `over`."""

    def __init__(
        self,
        folder: Path,
        *,
        places: int = 2,
        timeout_s: float = 60.0,
        most: int = 12,
        engine: Any = None,
        parser: str = "auto",
        **changes: Any,
    ) -> None:
        """`engine` is the student where it is not the tiny one."""
        self.folder = folder
        self.tasks = {name: {"id": name} for name in ("a", "b", "c")}
        policy = engine or make_student()
        self.codec = Codec(policy.tokenizer)
        self.policy, self.student, self.teacher = policy, Scripted(policy, self.codec), Scripted(policy, self.codec)
        self.chat = Chat(self.codec, tools="plain", parser=parser)
        self.over: list[Played] = []
        self._pool = ProgramPool(["sh", "-c", WAITER, str(folder)], self.tasks, size=places, timeout_s=timeout_s)
        self.endpoint = self._pool._endpoint
        acting = Acting(PromptStyle(), self.codec, temperature=1.0, max_response_tokens=most, seed=3)
        self._acting = replace(acting, **{k: v for k, v in changes.items() if k in Acting.__dataclass_fields__})
        self._programs = {k: v for k, v in changes.items() if k not in Acting.__dataclass_fields__}
        Store.create(folder / "store.db").close()
        self._wanted: deque[Start] = deque()
        self._closing = Event()
        self._thread = Thread(target=self._play)
        self._thread.start()

    def sit(self, task: str, *, number: int = 0, depth: int = 100) -> Seat:
        """Begin a rollout; the seat of its program."""
        for left in (self.folder / task, self.folder / f"{task}.done"):
            left.unlink(missing_ok=True)
        self._wanted.append(Start(number, task, depth))
        file = self.folder / task
        wait_for(file.exists)
        base_url, key, outcome = file.read_text().split("\n")
        return Seat(base_url, key, Path(outcome), self.folder, task)

    def ended(self, count: int = 1) -> Played:
        """Wait for the rollout that ends as the `count`-th."""
        wait_for(lambda: len(self.over) >= count)
        return self.over[count - 1]

    def attempts(self, number: int = 0) -> list[CallAttempt]:
        with Store.open_read_only(self.folder) as store:
            return read_attempts(store, number)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _play(self) -> None:
        settings = {"max_prompt_tokens": 4_000, **self._programs}
        try:
            with Store.open(self.folder) as store:
                player = Player(self._pool, self.student, version=5, teacher_of=lambda task: self.teacher)
                acting = replace(self._acting, program=Programs(self.chat, calls=store, **settings))
                while not self._closing.is_set():
                    while self._wanted and player.free:
                        player.begin(self._wanted.popleft(), acting)
                    self.over += player.step() if player.in_flight else []
                    if not player.in_flight:
                        time.sleep(0.002)
        finally:
            self._pool.close()
