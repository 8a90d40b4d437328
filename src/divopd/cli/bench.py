"""`divopd bench`: speed, measured in the same run against the best short way, or against a package users would take."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import divopd
from divopd.errors import InputError, UnknownNameError
from divopd.experiments.peers import PeerProcess, find_peer, peers_of, python_of

HELP = "Measure speed against the best short way or a peer, in one run, and print the ratio (above 1: ours is better)."
EXAMPLE = "divopd bench composer --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="without a name: list the benchmarks")
    parser.add_argument("--peer", help="compare with this real package, in a virtual environment of its own")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="small sizes, in seconds: shows that it runs, no figures")


def run(args: argparse.Namespace) -> int:
    files = benchmarks()
    if args.name is None:
        if args.peer is not None:
            raise InputError("--peer needs the name of a benchmark; `divopd bench` lists them with their peers")
        print("\n".join(f"{name:14}{_first_line(file)}{_peers(name)}" for name, file in files.items()))
        return 0
    if args.name not in files:
        raise UnknownNameError("benchmark", args.name, files)
    peer = None if args.peer is None else find_peer(args.name, args.peer)
    python = None if peer is None else python_of(peer)  # before anything is loaded
    module = _load(files[args.name])
    sizes = module.QUICK if args.quick else module.FULL
    if peer is None or python is None:
        result = module.run(sizes)
    else:
        with PeerProcess(python, files[args.name].parent / "peers" / peer.script) as process:
            result = module.run_beside(peer, process, sizes)
    if args.quick:
        print("quick: sizes this small show that the benchmark runs; its figures are not measurements", file=sys.stderr)
    print(json.dumps(result) if args.json else json.dumps(result, indent=2))
    return 0


def benchmarks() -> dict[str, Path]:
    """Every benchmark and its file. Each has `run(sizes)`, and two sizes for it: FULL to measure, QUICK to try.

    One with peers also has `run_beside(peer, process, sizes)`.
    """
    return {file.stem: file for file in sorted(_folder().glob("*.py"))}


def _folder() -> Path:
    """benchmarks/ of the source checkout, or its copy inside an installed package."""
    package = Path(divopd.__file__).parent
    for folder in (package / "benchmarks", package.parents[1] / "benchmarks"):
        if folder.is_dir():
            return folder
    raise InputError("the benchmarks are not installed; run them from a source checkout")


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"divopd_bench_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _first_line(file: Path) -> str:
    return file.read_text(encoding="utf-8").removeprefix('"""').splitlines()[0].rstrip('".')


def _peers(name: str) -> str:
    return f" (--peer {', '.join(peers_of(name))})" if peers_of(name) else ""
