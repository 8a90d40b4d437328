"""Do the tests notice planted bugs? `make mutants`, under half an hour on two cores.

Every file of tests/mutants is a bug: a patch of one source file, with a header that says what it is and which tests
should notice it. The tests first run on the tree as it is. Then each patch is applied, alone, to a copy of the tree,
and its tests run there until one fails; a test that hangs counts as one that failed. The work tree is never touched.

    Bug: the epoch of a learner is not checked
    Test: tests/store/test_ledger.py::test_a_replaced_learner_is_fenced
    Equivalent: why no test can notice it                      (only where that is so)
    Drawn: ...                                                 (only those of scripts/draw_mutants.py)

The result is told as it comes and written to docs/mutants.md. The exit code is 1 if a patch no longer applies, if its
tests fail without it, if a bug that was called equivalent is noticed, or if more than two others are not noticed.

    python scripts/mutants.py --only 105             one bug, or all whose names begin so; the table is not written
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from shutil import copy2, rmtree
from typing import Literal, TypeVar

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "tests" / "mutants"
TABLE = ROOT / "docs" / "mutants.md"
ALLOWED_SURVIVORS = 2
PATIENCE_S = 30.0  # for a test, besides five times what it takes without the bug
KEYS = ("Bug", "Test", "Equivalent", "Drawn")
Job = TypeVar("Job")
Done = TypeVar("Done")
Result = Literal["noticed", "survived", "equivalent", "does not apply", "error"]


class Trouble(Exception):
    """Something that stops all of it; one line for the user."""


# ── patches ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Mutant:
    """A planted bug."""

    file: Path
    source: str  # the file that it changes
    bug: str
    tests: tuple[str, ...]
    equivalent: str | None
    drawn: str | None

    @property
    def name(self) -> str:
        return self.file.stem


def read_mutant(file: Path) -> Mutant:
    """A patch with its header. Whatever is wrong with either is said in one line."""
    header, mark, rest = file.read_text(encoding="utf-8").partition("\n--- a/")
    changed = re.findall(r"^--- a/(\S+)\n\+\+\+ b/(\S+)$", f"{mark[1:]}{rest}", re.MULTILINE)
    if len(changed) != 1 or len(set(changed[0])) != 1:
        raise Trouble(f"{file.name}: changes {len(changed)} files; expected one, under the same name")
    values: dict[str, list[str]] = {key: [] for key in KEYS}
    for line in header.splitlines():
        key, _, value = line.partition(": ")
        if key not in values or not value.strip():
            raise Trouble(f"{file.name}: line {line!r} of its header; expected one of {', '.join(KEYS)}, and a text")
        values[key].append(value.strip())
    if len(values["Bug"]) != 1 or not values["Test"] or max(len(values["Equivalent"]), len(values["Drawn"])) > 1:
        raise Trouble(f"{file.name}: its header needs one Bug, a Test or more, at most one Equivalent and Drawn")
    equivalent, drawn = ((values[key] or [None])[0] for key in ("Equivalent", "Drawn"))
    return Mutant(file, changed[0][0], values["Bug"][0], tuple(values["Test"]), equivalent, drawn)


def read_mutants(only: Sequence[str] = ("",)) -> list[Mutant]:
    """All bugs whose names begin with one of these, by name."""
    files = sorted(PATCHES.glob("*.patch"))
    for name in only:
        if not any(file.name.startswith(name) for file in files):
            raise Trouble(f"no patch of tests/mutants begins with {name!r}")
    return [read_mutant(file) for file in files if file.name.startswith(tuple(only))]


def why_not_applicable(mutant: Mutant, tree: Path) -> str | None:
    """What git has against the patch; None if it applies."""
    command = ["git", "apply", "--check", str(mutant.file)]
    done = subprocess.run(command, cwd=tree, env=_without_git(), capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[0]


def _without_git() -> dict[str, str]:
    """A hook of git sets variables that would make it look at another tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


# ── a copy of the tree ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Copy:
    """A copy of the work tree with its own folder for temporary files; one test run at a time."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @contextmanager
    def with_bug(self, mutant: Mutant) -> Iterator[None]:
        file = self.tree / mutant.source
        whole = file.read_bytes()
        command = ["git", "apply", str(mutant.file)]
        subprocess.run(command, cwd=self.tree, env=_without_git(), capture_output=True, check=True)
        try:
            _forget_compiled(file)
            yield
        finally:
            file.write_bytes(whole)
            _forget_compiled(file)

    def pytest(self, tests: Iterable[str], *words: str, limit_s: float) -> tuple[int | None, str]:
        """(exit code, output) of these tests; no code if they had to be killed."""
        temporary = self.folder / "tmp"
        rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        own = {"PYTHONPATH": str(self.tree / "src"), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        usual = ("-q", "-p", "no:cacheprovider", "--durations=0", "--hypothesis-profile=mutants")
        command = [sys.executable, "-m", "pytest", *usual, *words, *tests]
        with (self.folder / "output").open("w+b") as output:
            run = subprocess.Popen(
                command, cwd=self.tree, env=_without_git() | own, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = run.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(run)
            output.seek(0)
            return code, output.read().decode(errors="replace")


def _forget_compiled(file: Path) -> None:
    """Python takes a compiled file of the same second and size for that of another source."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _end(run: subprocess.Popen[bytes]) -> None:
    """Whatever a test run left in its process group goes."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


@contextmanager
def copies(count: int) -> Iterator[list[Copy]]:
    """Copies of the work tree as it is, without what git ignores."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        env=_without_git(),
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        raise Trouble(f"{ROOT} is not a git work tree: {listed.stderr.decode().strip()}")
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        made = [Copy(Path(folder) / str(number)) for number in range(count)]
        for name in names:
            for copy in made:
                (copy.tree / name).parent.mkdir(parents=True, exist_ok=True)
                copy2(ROOT / name, copy.tree / name)
        yield made


# ── the tests without a bug ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Sound:
    """How the tests do on the tree as it is: the seconds of each, and which do not pass."""

    seconds: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def of(self, test: str) -> list[str]:
        """The single tests that a name stands for: a file, a function, or one of its cases."""
        return [name for name in self.seconds if name == test or name.startswith((f"{test}::", f"{test}["))]

    def slowest_s(self, tests: Iterable[str]) -> float:
        return max((self.seconds[name] for test in tests for name in self.of(test)), default=0.0)

    def total_s(self, tests: Iterable[str]) -> float:
        return sum(self.seconds[name] for name in {name for test in tests for name in self.of(test)})

    def trouble(self, mutant: Mutant) -> str | None:
        """Why nothing can be said about a bug."""
        for test in mutant.tests:
            if not self.of(test):
                return f"{test} is no test that runs; got nothing from it on the tree as it is"
            if broken := [name for name in self.of(test) if name in self.failed]:
                return f"{broken[0]} fails without the bug"
        return None


def read_junit(file: Path) -> Sound:
    """The test cases in a report of pytest; those that were skipped are left out."""
    sound = Sound()
    for case in ElementTree.parse(file).iter("testcase"):
        place = case.get("classname", "").split(".")  # its file without .py, then perhaps a class
        size = next(
            (n for n in range(len(place), 0, -1) if (ROOT / "/".join(place[:n])).with_suffix(".py").exists()), 0
        )
        name = "::".join([f"{'/'.join(place[:size])}.py", *place[size:], case.get("name", "")])
        if case.find("skipped") is None:
            sound.seconds[name] = sound.seconds.get(name, 0.0) + float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            sound.failed.add(name)
    return sound


def run_sound(copy: Copy, tests: Sequence[str]) -> Sound:
    report = copy.folder / "junit.xml"
    report.unlink(missing_ok=True)
    words = (f"--junitxml={report}", "-o", "junit_family=xunit1")
    code, output = copy.pytest(tests, *words, limit_s=3600)
    if code not in (0, 1) or not report.exists():
        said = [line for line in output.splitlines() if line.startswith(("ERROR", "E "))] or output.splitlines()[-1:]
        raise Trouble(f"the tests cannot run on the tree as it is (exit code {code}): {' '.join(said[:1])}")
    return read_junit(report)


def sound_tests(made: Sequence[Copy], mutants: Sequence[Mutant]) -> Sound:
    """All tests of these bugs, on the tree as it is, a file at a time on each copy."""
    by_file: dict[str, set[str]] = {}
    for test in {test for mutant in mutants for test in mutant.tests}:
        by_file.setdefault(test.partition("::")[0], set()).add(test)
    wanted = [[file] if file in tests else sorted(tests) for file, tests in sorted(by_file.items())]
    whole = Sound()
    for tests, part in zip(wanted, on_copies(made, run_sound, wanted), strict=True):
        whole.seconds |= part.seconds
        whole.failed |= part.failed
        failed = f", {len(part.failed)} of them fail" if part.failed else ""
        file, taken = tests[0].partition("::")[0], sum(part.seconds.values())
        print(f"{file:<52} {len(part.seconds):>3} tests {taken:6.1f} s{failed}", flush=True)
    return whole


def on_copies(made: Sequence[Copy], work: Callable[[Copy, Job], Done], jobs: Iterable[Job]) -> Iterator[Done]:
    """Each job on a copy that is free, the results in the order of the jobs; after an error no other job begins."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in made:
        free.put(copy)

    def on_one(job: Job) -> Done:
        copy = free.get()
        try:
            return work(copy, job)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(made)) as pool:
        try:
            yield from pool.map(on_one, jobs)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


# ── the tests with a bug ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Outcome:
    """What became of a bug."""

    mutant: Mutant
    result: Result
    detail: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.mutant.name:<44} {self.result}: {self.detail} ({self.seconds:.0f} s)"


def try_bug(copy: Copy, mutant: Mutant, sound: Sound) -> Outcome:
    """Plant one bug and run its tests until one of them fails."""
    if trouble := why_not_applicable(mutant, copy.tree):
        return Outcome(mutant, "does not apply", trouble)
    if trouble := sound.trouble(mutant):
        return Outcome(mutant, "error", trouble)
    began = time.monotonic()
    each_s = PATIENCE_S + 5 * sound.slowest_s(mutant.tests)
    with copy.with_bug(mutant):
        limit_s = each_s + PATIENCE_S + 5 * sound.total_s(mutant.tests)
        code, output = copy.pytest(mutant.tests, "-x", f"--timeout={each_s:.0f}", limit_s=limit_s)
    result, detail = judge(mutant, code, output)
    return Outcome(mutant, result, detail, time.monotonic() - began)


def judge(mutant: Mutant, code: int | None, output: str) -> tuple[Result, str]:
    """What the run of a bug's tests says; they passed without it, so that every failure is the bug's."""
    if code == 0:
        return ("equivalent", mutant.equivalent) if mutant.equivalent else ("survived", "no test failed")
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    by = named[1] if named else "a test that had to be killed" if code is None else f"exit code {code} of pytest"
    hung = " (timeout)" if code is None or "from pytest-timeout" in output else ""
    if mutant.equivalent:
        return "error", f"called equivalent, but noticed by {by}{hung}"
    return "noticed", f"{by}{hung}"


# ── what is told ──────────────────────────────────────────────────────────────────────────────────────────────────


def verdict(outcomes: Sequence[Outcome]) -> str | None:
    """Why the command fails; None if it does not."""
    counts = Counter(outcome.result for outcome in outcomes)
    reasons = [f"{counts[result]} {result}" for result in ("does not apply", "error") if counts[result]]
    if counts["survived"] > ALLOWED_SURVIVORS:
        reasons.append(f"{counts['survived']} survived, at most {ALLOWED_SURVIVORS} may")
    return "; ".join(reasons) or None


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.result for outcome in outcomes)
    return f"{len(outcomes)} bugs: " + ", ".join(f"{count} {result}" for result, count in counts.most_common())


def table(outcomes: Sequence[Outcome]) -> str:
    """The page of the result, as Markdown."""
    drawn = sum(outcome.mutant.drawn is not None for outcome in outcomes)
    lines = [
        "# Planted bugs",
        "",
        "Made by `make mutants`: it plants each patch of `tests/mutants` in a copy of the tree and",
        f"runs the tests there that should notice it. {summary(outcomes)}. {drawn} of them were drawn by a seed",
        "(`scripts/draw_mutants.py`), the others were chosen by hand. An equivalent one changes nothing that a test",
        "could see; the reason is given.",
        "",
        "| bug | file | what it does | result |",
        "|---|---|---|---|",
    ]
    for outcome in outcomes:
        mutant = outcome.mutant
        by = {"noticed": "noticed by"}.get(outcome.result, outcome.result)
        detail = f"`{outcome.detail}`" if outcome.result == "noticed" else outcome.detail
        cells = (mutant.name, mutant.source.removeprefix("src/divopd/"), f"`{mutant.bug}`", f"{by} {detail}")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def run(mutants: Sequence[Mutant], *, jobs: int) -> list[Outcome]:
    """Try all bugs, and tell of each as soon as those before it are known."""
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with copies(jobs) as made:
        tests = len({test for mutant in mutants for test in mutant.tests})
        print(f"{len(mutants)} bugs; their {tests} tests and test files, first on the tree as it is", flush=True)
        sound = sound_tests(made, mutants)
        print(f"{len(sound.seconds)} tests ran in {time.monotonic() - began:.0f} s", flush=True)
        for outcome in on_copies(made, lambda copy, mutant: try_bug(copy, mutant, sound), mutants):
            outcomes.append(outcome)
            print(f"[{len(outcomes)}/{len(mutants)}, {time.monotonic() - began:.0f} s] {outcome}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="the bugs whose names begin so; writes no table")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="test runs at a time (default 2)")
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error("--jobs must be 1 or more")
    try:
        outcomes = run(read_mutants(args.only or ("",)), jobs=args.jobs)
    except Trouble as trouble:
        print(f"mutants: {trouble}", file=sys.stderr)
        return 2
    for outcome in outcomes:
        if outcome.result not in ("noticed", "equivalent"):
            print(outcome)
    print(summary(outcomes))
    if not args.only:
        TABLE.write_text(table(outcomes), encoding="utf-8")
        print(f"written: {TABLE.relative_to(ROOT)}")
    if failure := verdict(outcomes):
        print(f"mutants: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
