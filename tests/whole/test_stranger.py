"""A stranger's first hour: a fresh clone, and nothing but commands that the README or a page of docs/ shows.

The demo, an environment of one's own, SmolLM2 as one's own model, one's own recording, and the student taken out.
"""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from blocks import blocks_of, commands_of

from divopd.report.runs import read_run
from smollm2 import save_disturbed, save_smollm2

ROOT = Path(__file__).parents[2]
DEMO = ("make setup", "divopd demo --quick")  # `make fresh` does the long one
OWN_ENVIRONMENT = "divopd init --environment rooms.py:Rooms --student embedded:student --teacher expert --out rooms"
OWN_MODELS = (
    "divopd train mine.yaml --dry-run",
    "divopd train mine.yaml --out runs/mine --set learner.updates=4 --set evaluation.every=2 --set evaluation.tasks=20",
)
OWN_RECORDING = "divopd replay my-queue.jsonl --verdict"
MODEL_OUT = "divopd export runs/mine --model my-student"
SCRIPT = (*DEMO, OWN_ENVIRONMENT, *OWN_MODELS, OWN_RECORDING, MODEL_OUT)

MINE = """
environment: {name: 'rooms.py:Rooms', horizon: 3}
prompts: {answer: terse, actions: listed, max_prompt_tokens: 512}
student: {model: models/student}
teacher: {model: models/teacher}
composer: {batch_size: 8}
learner: {lr: 1.0e-5}
explorer: {rollouts_in_flight: 4, max_response_tokens: 8}
"""
LOAD = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("my-student")
tokenizer = AutoTokenizer.from_pretrained("my-student")
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Guess my number."}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
before = AutoModelForCausalLM.from_pretrained("models/student").state_dict()
changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
print(model.num_parameters(), "parameters,", answer.shape[1] - prompt["input_ids"].shape[1], "tokens,", bool(changed))
"""

# ── only what is documented ───────────────────────────────────────────────────────────────────────────────────────


def shape(command: str) -> tuple[str, ...]:
    """A command with the names of files, folders and models left out: those a reader chooses."""
    words = shlex.split(command)
    return (*words[:2], *("PLACE" if _is_chosen(word, before) else word for before, word in pairwise(words[1:])))


def _is_chosen(word: str, before: str) -> bool:
    return before in ("--out", "--model") or bool(re.fullmatch(r"[A-Z_]+|[^-=][^=]*([/:@]|\.[a-z])[^=]*", word))


def documented(root: Path) -> set[tuple[str, ...]]:
    """The commands of the README and of docs/: in blocks, with or without a prompt, and inside sentences."""
    found: set[str] = set()
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        for block in blocks_of(page):
            found |= {part for line in commands_of(block.text) for part in re.split(r" && |^\$ ", line)}
        found |= set(re.findall(r"`((?:divopd|make) [^`\n]+)`", page.read_text(encoding="utf-8")))
    shapes: set[tuple[str, ...]] = set()
    for command in found:
        if command.startswith(("divopd ", "make ")):
            try:
                shapes.add(shape(command))
            except ValueError:  # a quotation that goes on in another line
                continue
    return shapes


@pytest.mark.parametrize("command", SCRIPT)
def test_the_script_is_documented(command: str) -> None:
    """So that a page that changes is noticed at once, without the hour that the script may take."""
    assert shape(command) in documented(ROOT)


@pytest.mark.parametrize(
    "command",
    ["divopd replay mine.jsonl --verdikt", "divopd train mine.yaml --set learner.updates=5", "make everything"],
)
def test_what_no_page_shows_is_not_documented(command: str) -> None:
    assert shape(command) not in documented(ROOT)


# ── the script ────────────────────────────────────────────────────────────────────────────────────────────────────


class Stranger:
    """Somebody at a terminal in a clone, with an empty home; pip has the settings and the cache of this machine."""

    def __init__(self, clone: Path, home: Path) -> None:
        self.clone = clone
        self.pages = documented(clone)
        home.mkdir()
        self.variables = {"HOME": str(home), "PATH": _path_without(sys.prefix), "LANG": "C.UTF-8"} | _pip_settings()

    def types(self, command: str) -> str:
        """What a command prints, on a terminal where the virtual environment is active if there is one."""
        assert shape(command) in self.pages, f"`{command}` is on no page"
        active = ". .venv/bin/activate && " if (self.clone / ".venv" / "bin" / "activate").exists() else ""
        return self.runs(["bash", "-c", active + command])

    def runs(self, words: list[str]) -> str:
        done = subprocess.run(
            words, cwd=self.clone, env=self.variables, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{words[-1]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout


def _path_without(prefix: str) -> str:
    return os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if not one.startswith(prefix))


def _pip_settings() -> dict[str, str]:
    """Where pip finds packages, certificates and what it has downloaded before: the home that had them is not there."""
    kept = re.compile(
        r"PIP_.*|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|TORCH|TMPDIR|.*_proxy", re.IGNORECASE
    )
    settings = {name: value for name, value in os.environ.items() if kept.fullmatch(name)}
    pip = [sys.executable, "-m", "pip", "cache", "dir"]
    cache = subprocess.run(pip, capture_output=True, text=True, check=False)
    if cache.returncode == 0:  # it may be switched off
        settings.setdefault("PIP_CACHE_DIR", cache.stdout.strip())
    file = Path.home() / ".config" / "pip" / "pip.conf"
    return settings | ({"PIP_CONFIG_FILE": str(file)} if file.is_file() else {})


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    """Its clone is removed afterwards: gigabytes."""
    if not all(map(shutil.which, ("git", "make"))):
        pytest.skip("for want of git")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    yield Stranger(clone, tmp_path / "home")
    shutil.rmtree(clone)


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_the_first_hour_of_a_stranger(stranger: Stranger) -> None:
    """Every command is on a page, works, and leaves what the next one needs."""
    clone = stranger.clone
    teacher = save_smollm2(clone / "models" / "teacher")  # first: without it the test is skipped
    save_disturbed(teacher, clone / "models" / "student", share=0.05)

    for command in DEMO:
        printed = stranger.types(command)
    assert "what the paper expects of DivOPD, and these runs" in printed
    assert (clone / "runs" / "demo-quick" / "report.html").is_file()

    commands = stranger.types(OWN_ENVIRONMENT).splitlines()
    assert len(commands) == 3
    for command in commands:
        stranger.types(command)
    rates = read_run(clone / "rooms" / "run").rates
    assert min(rates[-3:]) > rates[0] + 25, rates

    (clone / "mine.yaml").write_text(MINE, encoding="utf-8")
    plan, trained = map(stranger.types, OWN_MODELS)
    assert "models/student: 134.5 million parameters" in plan
    assert len(read_run(clone / "runs" / "mine").rates) == 3, trained

    write_own_recording(clone / "my-queue.jsonl")
    verdict = stranger.types(OWN_RECORDING)
    assert "load" in verdict

    stranger.types(MODEL_OUT)
    loaded = stranger.runs([str(clone / ".venv" / "bin" / "python"), "-c", LOAD])
    assert re.fullmatch(r"134515008 parameters, [1-4] tokens, True\n", loaded)


def write_own_recording(file: Path) -> None:
    """As another framework would: the fields of docs/reference/recordings.md, and no code of ours."""
    draw = random.Random(0)
    with file.open("w", encoding="utf-8") as out:
        for number in range(300):
            for turn in range(draw.choice([3, 5, 8, 30])):
                response = [draw.randrange(100) for _ in range(6)]
                line = {
                    "rollout": f"mine-{number}",
                    "turn": turn,
                    "task": f"task-{number % 50}",
                    "version": max(0, number // 6 - 1),
                    "available_at": number // 6,
                    "prompt_ids": list(range(40 + 10 * turn)),
                    "prompt_truncated": turn > 25,
                    "response_ids": response,
                    "student_logprobs": [-draw.random() for _ in response],
                    "teacher_logprobs": [-2 * draw.random() for _ in response],
                    "action_mask": [1] * len(response),
                }
                out.write(json.dumps(line) + "\n")
