"""Benchmarks beside real packages: how a peer is found, asked, timed and lost. The packages themselves are slow."""

import json
import sys
import time
from pathlib import Path

import pytest

from divopd.cli import main
from divopd.cli.bench import benchmarks
from divopd.errors import DivopdError, InputError
from divopd.experiments.peers import PEERS, Peer, PeerProcess, Times, interleaved, python_of, ratio, timed

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks" / "peers"
SCRIPT = """
import subprocess, sys
from answering import answer, measured

def burn(seconds):
    code = f"import time\\nend = time.process_time() + {seconds}\\nwhile time.process_time() < end: pass"
    print("noise of a package")
    return measured(lambda: subprocess.Popen([sys.executable, "-c", code]).wait())

def fail():
    raise KeyError("no such row")

answer({"double": lambda number: 2 * number, "burn": burn, "fail": fail})
"""


@pytest.fixture
def asked(tmp_path: Path):
    script = tmp_path / "made_up_peer.py"
    script.write_text(SCRIPT)
    with PeerProcess(Path(sys.executable), script, variables={"PYTHONPATH": str(SCRIPTS)}) as process:
        yield process


def test_a_script_answers_what_it_is_asked(asked: PeerProcess) -> None:
    """Questions and answers are JSON, one after the other; what the package prints is not taken for an answer."""
    assert asked.ask("double", number=21) == 42
    assert asked.times("burn", seconds=0).wall_s > 0
    assert asked.ask("double", number=2.5) == 5.0


def test_processes_that_a_peer_starts_are_counted(asked: PeerProcess) -> None:
    """A peer with servers of its own cannot hide their work: the processor time of what it starts is its own."""
    assert asked.times("burn", seconds=0.2).processor_s >= 0.19


def test_a_peer_that_fails_says_its_last_words(asked: PeerProcess) -> None:
    with pytest.raises(DivopdError, match=r"made_up_peer.py ended when it was asked 'fail': KeyError: 'no such row'"):
        asked.ask("fail")


def test_rounds_alternate_and_the_first_does_not_count() -> None:
    """Each side is first as often as the other; medians are of the counted rounds."""
    order: list[str] = []

    def side(name: str, seconds: list[float]):
        def run() -> Times:
            order.append(name)
            return Times(wall_s=1.0, processor_s=seconds.pop(0))

        return run

    figures = interleaved({"ours": side("a", [9, 1, 3, 2, 4]), "theirs": side("b", [9, 6, 6, 6, 6])}, rounds=4)
    assert "".join(order) == "baabbaabba"
    assert figures["ours"]["processor_s"] == 2.5
    assert (figures["ours"]["processor_s_least"], figures["ours"]["processor_s_most"]) == (1, 4)
    assert ratio(figures, ours="ours", theirs="theirs") == 2.4


def test_processor_seconds_are_not_wall_seconds() -> None:
    """Waiting costs wall time alone."""
    waited = timed(lambda: time.sleep(0.05))
    assert waited.processor_s < waited.wall_s


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.bench}-{peer.name}")
def test_every_peer_has_a_script_and_an_environment(peer: Peer) -> None:
    """Its script lies in benchmarks/peers/ and imports no divopd, but for that of before; make can install it."""
    source = (SCRIPTS / peer.script).read_text(encoding="utf-8")
    assert ("divopd" in source.replace("`divopd bench", "")) == peer.package.startswith("divopd at ")
    assert f"{peer.environment}/installed:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "def run_beside(" in benchmarks()[peer.bench].read_text(encoding="utf-8")


def test_a_peer_that_is_not_installed_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"is not installed; run `make \.venv-nowhere/installed` in the clone"):
        python_of(Peer("store", "nowhere", "nowhere 1.0", ".venv-nowhere", "nowhere_peer.py"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["store", "--peer", "reverbb"], "did you mean 'reverb'?"),
        (["alfworld", "--peer", "reverb"], "benchmark 'alfworld' has no peers"),
        (["--peer", "reverb"], "--peer needs the name of a benchmark"),
    ],
)
def test_a_wrong_peer_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.bench}-{peer.name}")
def test_every_peer_that_is_installed_is_compared(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    """`--peer --quick` goes the whole way, in seconds, beside the real package."""
    try:
        python_of(peer)
    except InputError as error:
        pytest.skip(str(error))
    code = main(["bench", peer.bench, "--peer", peer.name, "--quick", "--json"])
    printed, said = capsys.readouterr()
    assert code == 0, said
    told = json.loads(printed)
    assert told["ratio"] > 0
    assert told["detail"]["peer"] == peer.package
