"""Does the code still do what it did at another commit? To the bit, on this machine: `make same BASE=COMMIT`.

Each method trains for a few updates of configs/default, once with the code of BASE (in a temporary git worktree) and
once with the working tree as it is, both with this Python. Then the two runs are compared in the order in which things
happened: evaluations, the rows of every update with their weights, tokens and log probabilities, what became of the
other turns, and the last weights. The first difference is named, and the exit code is 1.

What a commit did is kept in .same/COMMIT.json and used again for BASE as long as the machine, the libraries and these
scripts are the same. The working tree always runs: BASE=HEAD in a clean tree asks whether a run repeats itself.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".same"
READER = Path(__file__).with_name("same_record.py")
METHODS = ("vanilla", "divopd", "divopd-r", "tcod-f2b", "turnopd")
CHEAP = ("evaluation.tasks=20", "evaluation.in_flight=20")
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
Record = dict[str, Any]
Fact = tuple[str, Any]


class Trouble(Exception):
    """Something that stops the comparison; one line for the user."""


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def first_difference(base: Record, here: Record) -> str | None:
    """Where two records first differ, and how; None if they are the same. Both must know the fields that they share."""
    shared = fields_of(base) & fields_of(here)
    for old, new in zip_longest(facts_of(base, shared), facts_of(here, shared)):
        if old is None or new is None:
            return f"{old[0]}: only at BASE" if old else f"{new[0]}: only here" if new else None
        if old != new:
            what = old[0] if old[0] == new[0] else f"{old[0]} at BASE, {new[0]} here"
            return f"{what}: {old[1]} at BASE, {new[1]} here"
    return None


def facts_of(record: Record, fields: set[str]) -> Iterator[Fact]:
    """All that is compared, in the order in which it happened; of a turn only these fields."""
    evaluations = dict(record["evaluations"])
    yield from _evaluation_facts("0", evaluations.pop("0", None))
    for batch in record["updates"]:
        yield from _update_facts(batch, fields)
    for version, figures in evaluations.items():
        yield from _evaluation_facts(version, figures)
    for rollout, fates in record["fates"].items():
        yield f"fates of rollout {rollout}", fates
    for name, tensor in record["weights"].items():
        yield f"final weights, {name}", tensor


def _evaluation_facts(version: str, figures: Mapping[str, Any] | None) -> Iterator[Fact]:
    for name, value in (figures or {}).items():
        yield f"evaluation of version {version}, {name}", value


def _update_facts(batch: Record, fields: set[str]) -> Iterator[Fact]:
    yield f"update {batch['update']}, rows", len(batch["rows"])
    for place, (row, weight) in enumerate(zip(batch["rows"], batch["weights"], strict=True)):
        where = f"update {batch['update']}, row {place}"
        yield f"{where}, ROLLOUT/TURN", row
        yield f"{where} ({row}), weight", weight
        for name in sorted(fields):
            yield f"{where} ({row}), digest of {name}", batch["turns"][name][place]


def fields_of(record: Record) -> set[str]:
    """The fields of a turn in a record. Restructuring may add some: those are not compared."""
    return {name for batch in record["updates"] for name in batch["turns"]}


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Code:
    """A source tree to run, and how it is called in messages."""

    tree: Path
    name: str

    def run(self, *command: str) -> str:
        """Run Python with this tree's code; its output. A failure is told by its last line."""
        environment = os.environ | {"PYTHONPATH": str(self.tree / "src")}
        done = subprocess.run(
            [sys.executable, *command], env=environment, cwd=self.tree, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise Trouble(f"{self.name}: exit code {done.returncode} of {' '.join(command[:3])}: {said}")
        return done.stdout

    def record(self, method: str, *, updates: int) -> Record:
        """Train with this code and read what it did, with this code too."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="same-run-") as folder:
            settings = (*CHEAP, f"learner.updates={updates}", f"evaluation.every={updates}")
            overrides = [word for setting in settings for word in ("--set", setting)]
            config = self.tree / "configs" / "default" / f"{method}.yaml"
            self.run("-m", "divopd", "train", str(config), *overrides, "--out", f"{folder}/run")
            record = json.loads(self.run(str(READER), f"{folder}/run", str(updates)))
        used = Path(record.pop("code")).resolve()
        if not used.is_relative_to(self.tree.resolve()):
            raise Trouble(f"{self.name}: {used} was imported, expected the code in {self.tree}")
        if len(record["updates"]) != updates or not record["weights"]:
            raise Trouble(f"{self.name}: {method} made {len(record['updates'])} updates, expected {updates}")
        print(f"{method:<12} {self.name:<12} {time.monotonic() - began:6.0f} s", flush=True)
        return record


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary worktree of a commit."""
    with tempfile.TemporaryDirectory(prefix="same-base-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Trouble(f"git {' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()


# ── what a commit did, kept ───────────────────────────────────────────────────────────────────────────────────────


def circumstances() -> dict[str, str]:
    """All that the bits of a run depend on besides the commit, and the scripts that read them."""
    scripts = b"".join(path.read_bytes() for path in (Path(__file__), READER))
    try:
        versions = {name: metadata.version(name) for name in LIBRARIES}
    except metadata.PackageNotFoundError as error:
        raise Trouble(f"{error.name} is not installed; run `make setup` first") from None
    return versions | {
        "python": platform.python_version(),
        "processor": processor(),
        "scripts": hashlib.sha256(scripts).hexdigest(),
    }


def processor() -> str:
    """The processor's model, where the system says it; else its family."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def kept_records(file: Path, *, circumstances: Mapping[str, str]) -> dict[str, Record]:
    """The records of a commit by `METHOD UPDATES`; none if they were made in other circumstances."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept["records"] if kept["circumstances"] == circumstances else {}


def keep_records(file: Path, records: Mapping[str, Record], *, circumstances: Mapping[str, str]) -> None:
    """Add records of a commit to those that are kept."""
    records = {**kept_records(file, circumstances=circumstances), **records}
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"circumstances": circumstances, "records": records}), encoding="utf-8")
    partial.replace(file)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────


def same(base: str, *, methods: Sequence[str], updates: int, jobs: int) -> bool:
    """Run what is not kept, compare every method, say what was found."""
    commit = git("rev-parse", "--verify", f"{base}^{{commit}}")
    now, before = circumstances(), state_of_tree()
    names = {method: f"{method} {updates}" for method in methods}  # of the records that are kept
    file = KEPT / f"{commit}.json"
    kept = kept_records(file, circumstances=now)
    missing = [method for method in methods if names[method] not in kept]
    with checked_out(commit) if missing else nullcontext(ROOT) as tree, running(jobs) as pool:
        theirs, ours = Code(tree, commit[:10]), Code(ROOT, "here")
        base_runs = {method: pool.submit(theirs.record, method, updates=updates) for method in missing}
        here_runs = {method: pool.submit(ours.record, method, updates=updates) for method in methods}
        for method, run in base_runs.items():
            kept[names[method]] = run.result()
            keep_records(file, {names[method]: run.result()}, circumstances=now)
        found = {method: run.result() for method, run in here_runs.items()}
    head, changes = state_of_tree()
    if (head, changes) == before and not changes:
        records = {names[method]: record for method, record in found.items()}
        keep_records(KEPT / f"{head}.json", records, circumstances=now)
    differences = {method: first_difference(kept[names[method]], found[method]) for method in methods}
    for method, difference in differences.items():
        said = "same" if difference is None else f"DIFFERENT: {difference}"
        print(f"{method:<12} {said}{uncompared(kept[names[method]], found[method])}")
    return not any(differences.values())


@contextmanager
def running(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """So many runs at a time; after the first failure no other is started."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def uncompared(base: Record, here: Record) -> str:
    """Which fields of a turn were not compared because only one of the two has them."""
    odd = sorted(fields_of(base) ^ fields_of(here))
    return f" (not compared, only one side has it: {', '.join(odd)})" if odd else ""


def state_of_tree() -> tuple[str, str]:
    """The commit that is checked out, and what differs from it."""
    return git("rev-parse", "HEAD"), git("status", "--porcelain")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the working tree with another commit, to the bit.")
    parser.add_argument("base", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME", help="default: %(default)s")
    parser.add_argument("--updates", type=int, default=10, metavar="N", help="learner updates of a run (default 10)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    args = parser.parse_args()
    if min(args.updates, args.jobs) < 1:
        parser.error("--updates and --jobs must be 1 or more")
    try:
        return 0 if same(args.base, methods=args.methods, updates=args.updates, jobs=args.jobs) else 1
    except Trouble as trouble:
        print(f"same: {trouble}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
