"""Numbered folders that are written whole or not at all, and that know when they are damaged.

A folder with a number for a name is complete: it was filled under another name, every file and the folder itself were
synced, and only then was it renamed. Its manifest.json holds the size and the sha256 of every file and a digest of
itself. One process writes beside the numbered folders at a time (the store fences a second learner).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from divopd.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1

Described = Mapping[str, dict[str, Any]]  # size and sha256 of files, as a manifest has them


def numbered_path(parent: Path, number: int) -> Path:
    """Where the folder of a number is."""
    return parent / f"{number:06d}"


def numbered_folders(parent: Path) -> list[Path]:
    """All numbered folders, the newest last; none when the parent does not exist."""
    if not parent.is_dir():
        return []
    return sorted((p for p in parent.iterdir() if p.name.isdigit() and p.is_dir()), key=lambda p: int(p.name))


def write_folder(parent: Path, number: int, fill: Callable[[Path], object], *, keep: int | None) -> Path:
    """Let `fill` write files into an empty folder, and make that folder PARENT/NUMBER in one step.

    When it returns, the folder is on disk and verified, and only then are all but the newest `keep` deleted (None
    keeps all). When it raises, and whenever the process dies, the other folders are as they were.
    """

    def hashed(partial: Path) -> Described:
        fill(partial)
        return {file.name: _describe(file) for file in sorted(partial.iterdir())}

    return _write(parent, number, hashed, check=verify, keep=keep)


def write_hashed_folder(
    parent: Path, number: int, fill: Callable[[Path], Described], *, keep: int | None = None
) -> Path:
    """As `write_folder`, where `fill` hashes what it writes: nothing is read back, only sizes are compared.

    A disk that keeps other bytes than it was given is noticed by whoever reads the folder, who verifies it.
    """
    return _write(parent, number, fill, check=_check_sizes, keep=keep)


def _write(
    parent: Path,
    number: int,
    fill: Callable[[Path], Described],
    *,
    check: Callable[[Path], object],
    keep: int | None,
) -> Path:
    target, partial = numbered_path(parent, number), parent / f".{number:06d}.partial"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for leftover in parent.glob(".[0-9]*.*"):  # of a process that was killed
            shutil.rmtree(leftover)
        partial.mkdir()
        _write_manifest(partial, number, fill(partial))
        _sync(partial)
        if target.exists():  # saved before a resume, or damaged: the new one takes its place
            target.rename(parent / f".{number:06d}.replaced")
        partial.rename(target)
        _sync(parent)
        check(target)
        _delete_old(parent, keep)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"{target}: cannot be written ({error}); the older ones are untouched, make room and save again"
        ) from None
    return target


def delete_folder(path: Path) -> None:
    """Delete a numbered folder; whenever the process dies, there is never half of one under a valid name."""
    doomed = path.with_name(f".{path.name}.deleted")
    path.rename(doomed)
    shutil.rmtree(doomed)


def verify(path: Path | str) -> dict[str, Any]:
    """Read every file, compare sizes and digests with the manifest, and return the manifest.

    A difference raises a CheckpointError that names the file and offers the newest older folder that is whole.
    """
    path = Path(path)
    try:
        return _checked_manifest(path)
    except _Damage as damage:
        raise refusal(path, str(damage)) from None


def refusal(path: Path, what: str) -> CheckpointError:
    """The error that says what is wrong with a folder and which older one to use instead."""
    number = int(path.name) if path.name.isdigit() else 0
    older = [folder for folder in numbered_folders(path.parent) if int(folder.name) < number]
    whole = next((folder for folder in reversed(older) if _is_whole(folder)), None)
    advice = f"the previous whole one is {whole}: use it instead" if whole else "there is no older whole one"
    return CheckpointError(f"{path}: {what}; {advice}")


class _Damage(Exception):
    """What is wrong with a folder."""


def _is_whole(path: Path) -> bool:
    try:
        _checked_manifest(path)
    except _Damage:
        return False
    return True


def _checked_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = _read_manifest(path)
        found = {entry.name for entry in path.iterdir()} - {MANIFEST}
        for name in sorted(found ^ manifest["files"].keys()):
            raise _Damage(f"{name} is {'not in the manifest' if name in found else 'missing'}")
        for name, expected in manifest["files"].items():
            got = _describe(path / name)
            for what in ("bytes", "sha256"):
                if got[what] != expected[what]:
                    raise _Damage(f"{name}: {what} is {got[what]}, expected {expected[what]}")
    except OSError as error:
        raise _Damage(f"cannot be read ({error})") from None
    return manifest


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise _Damage("there is no such folder")
    try:
        raw = (path / MANIFEST).read_bytes()
        manifest = json.loads(raw)
        content = {key: manifest[key] for key in ("format", "number", "files")}
    except FileNotFoundError:
        raise _Damage(f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _Damage(f"{MANIFEST}: not the JSON of a manifest") from None
    if raw != _manifest_bytes(content):
        raise _Damage(f"{MANIFEST}: its digest does not fit its content")
    if (content["format"], content["number"]) != (FORMAT, int(path.name)):
        got = f"format {content['format']}, number {content['number']}"
        raise _Damage(f"{MANIFEST}: got {got}, expected format {FORMAT}, number {int(path.name)}")
    return manifest


def _check_sizes(path: Path) -> None:
    for name, expected in _read_manifest(path)["files"].items():
        if (got := (path / name).stat().st_size) != expected["bytes"]:
            raise OSError(f"{name} has {got} bytes, {expected['bytes']} were written")


def _write_manifest(path: Path, number: int, files: Described) -> None:
    for file in path.iterdir():
        _sync(file)
    (path / MANIFEST).write_bytes(_manifest_bytes({"format": FORMAT, "number": number, "files": dict(files)}))
    _sync(path / MANIFEST)


def _manifest_bytes(content: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "digest": digest}, indent=1, sort_keys=True).encode()


def _delete_old(parent: Path, keep: int | None) -> None:
    for old in numbered_folders(parent)[:-keep] if keep else []:
        delete_folder(old)
    for replaced in parent.glob(".[0-9]*.replaced"):
        shutil.rmtree(replaced)


def _describe(file: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
