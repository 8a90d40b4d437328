"""What a finished run did, as JSON on standard output: `python scripts/same_record.py RUN UPDATES`.

`same.py` runs this with the code of the commit that made the run, so it uses only names that restructuring keeps
(`Store.open`, `updates`, `batch`, the fields of a turn, the tables `rollouts` and `turns`, `metrics.jsonl`,
`weights/NNNNNN/weights.safetensors`). Long values are replaced by digests: equal digests mean equal bits.
"""

import hashlib
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_record(run: Path, *, updates: int) -> Record:
    """Every update's rows, what became of the other turns, the evaluations and the last weights."""
    import divopd.store  # of the tree that PYTHONPATH names

    store = divopd.store.Store.open(run)
    return {
        "code": divopd.store.__file__,
        "updates": [_batch(store.batch(number)) for number in range(store.updates)],
        "fates": _fates(Path(store.path)),
        "evaluations": _evaluations(run / "metrics.jsonl"),
        "weights": tensor_digests(run / "weights" / f"{updates:06d}" / "weights.safetensors"),
    }


def _batch(batch: Any) -> Record:
    """One composed batch: rows in order, their weights, and for each field of a turn a digest a row."""
    entry = batch.entry
    names = [field.name for field in fields(batch.turns[0])] if batch.turns else []
    return {
        "update": entry.update,
        "rows": ["/".join(map(str, turn.key)) for turn in batch.turns],
        "weights": list(getattr(entry, "weights", None) or batch.weights),
        "turns": {name: [_digest(getattr(turn, name)) for turn in batch.turns] for name in names},
    }


def _digest(value: Any) -> str:
    plain = value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def _fates(store: Path) -> dict[str, dict[str, int]]:
    """For each rollout how many of its turns had which fate; turns that no update has read are left out."""
    query = (
        "SELECT rollouts.id, turns.fate, count(*) FROM turns JOIN rollouts ON rollouts.number = turns.rollout "
        "WHERE turns.fate != 'queued' GROUP BY 1, 2 ORDER BY 1, 2"
    )
    fates: dict[str, dict[str, int]] = {}
    with closing(sqlite3.connect(store)) as db:
        for rollout, fate, turns in db.execute(query):
            fates.setdefault(rollout, {})[fate] = turns
    return fates


def _evaluations(metrics: Path) -> dict[str, Record]:
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return {
        str(line["version"]): {name: line[name] for name in ("success_rate", "by_kind")}
        for line in lines
        if line["kind"] == "evaluation"
    }


def tensor_digests(file: Path) -> dict[str, str]:
    """Type, shape and a digest of the bytes of every tensor by name; where it lies in the file does not matter.

    The format: the header's length in 8 bytes, a JSON header with the place of each tensor, then their bytes.
    """
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    digests: dict[str, str] = {}
    for name in sorted(header.keys() - {"__metadata__"}):
        tensor = header[name]
        begin, end = (start + offset for offset in tensor["data_offsets"])
        digests[name] = f"{tensor['dtype']} {tensor['shape']} {hashlib.sha256(content[begin:end]).hexdigest()[:16]}"
    return digests


if __name__ == "__main__":
    json.dump(read_record(Path(sys.argv[1]), updates=int(sys.argv[2])), sys.stdout)
