"""The ledger audit finds every kind of lie, and the commands tell what the ledger knows."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_processes import make_rollout, make_test_composer

from divopd.audits.ledger import audit_ledger
from divopd.cli import main
from divopd.errors import DivopdError, LedgerError
from divopd.methods import METHODS, make_composer
from divopd.replay import load_recording, replay
from divopd.store import Store
from divopd.store.journal import to_json_bytes
from divopd.store.payload import digest_of
from divopd.store.session import entry_digest
from divopd.turns import Rollout, read_turns, write_turns
from doubles.memory_store import MemoryStore
from strategies import turn


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run in which every fate occurs."""
    path = tmp_path_factory.mktemp("original") / "store.db"
    composer = make_composer("divopd", batch_size=8, pool_multiplier=4, cap=2, max_staleness=2, max_pending_age=1)
    with Store.create(path, synchronous="NORMAL") as store:
        epoch = store.begin_learner()
        for update in range(5):
            for number in range(24 if update == 0 else 6):
                store.put(make_rollout(f"e1.{update}.{number}", version=update))
            store.compose(composer, update=update, epoch=epoch)
        assert min(store.account()) > 0
    return path


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be spoiled."""
    shutil.copy(original, tmp_path / "store.db")
    return tmp_path


def tamper(run: Path, *statements: str) -> None:
    connection = sqlite3.connect(run / "store.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def rewrite_journal(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record of update 1 and seal the whole chain again, as a bug in the store would have written it."""
    connection = sqlite3.connect(run / "store.db")
    rows = connection.execute(
        "SELECT number, watermark, json, record FROM updates u JOIN settings s ON s.digest = u.settings ORDER BY number"
    ).fetchall()
    before = b""
    for number, watermark, settings, record in rows:
        fields = json.loads(record)
        if number == 1:
            change(fields)
        record = to_json_bytes(fields)
        before = entry_digest(before, number, watermark, settings, record)
        connection.execute("UPDATE updates SET record = ?, digest = ? WHERE number = ?", (record, before, number))
    connection.commit()
    connection.close()


def audited(run: Path) -> Any:
    with Store.open_read_only(run) as store:
        return audit_ledger(store)


def test_an_honest_ledger_passes(run: Path) -> None:
    """All batches are equal when recomputed, and the account adds up."""
    report = audited(run)
    assert (report.updates, report.rollouts, report.settled) == (5, 48, 0)
    assert report.account.adds_up


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_its_own_recording(tmp_path: Path, method: str) -> None:
    """A replay of a run's store with the run's method selects what the run selected."""
    composer = make_composer(method, batch_size=6, pool_multiplier=3, cap=2, max_pending_age=1)
    with Store.create(tmp_path / "store.db", synchronous="NORMAL") as store:
        epoch = store.begin_learner()
        for update in range(6):
            for number in range(4):
                store.put(make_rollout(f"e.{update}.{number}", version=max(update - 1, 0)))
            store.compose(composer, update=update, epoch=epoch)
        journal = [store.journal(update) for update in range(6)]
    decisions = list(replay(load_recording(tmp_path), composer))
    assert [[c.key for c in decision.selected] for decision in decisions] == [entry.selected for entry in journal]
    assert [decision.weights for decision in decisions] == [entry.weights for entry in journal]


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another order": (lambda fields: fields["selected"].reverse(), "update 1: selected: number 0"),
    "a turn left out": (lambda fields: fields["selected"].pop(), "update 1: selected: 7 in the journal, 8"),
    "another weight": (lambda fields: fields["selected"][3].__setitem__(2, 1.5), "update 1: weights: number 3 is 1.5"),
    "another pass": (lambda fields: fields["selected"][0].__setitem__(3, 2), "update 1: passes: number 0"),
    "an invented exit": (lambda fields: fields["stale"].append(["e1.0.0", 0]), "update 1: stale: 1 in the journal, 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_the_journal_is_found(run: Path, lie: str) -> None:
    """The first difference is named with its update, also when all digests fit."""
    change, message = LIES[lie]
    rewrite_journal(run, change)
    with pytest.raises(LedgerError, match=message):
        audited(run)


def test_a_changed_journal_that_is_not_sealed_again_is_damage(run: Path) -> None:
    """The chain of digests gives away a record that was changed or replaced by another."""
    tamper(run, "UPDATE updates SET record = (SELECT record FROM updates WHERE number = 2) WHERE number = 1")
    with pytest.raises(DivopdError, match="update 1 is damaged"):
        audited(run)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE turns SET fate = 'queued', fate_update = NULL WHERE fate = 'stale'", "the store says queued"),
        ("UPDATE turns SET fate_update = 3 WHERE fate = 'trained' AND fate_update = 2", "recomputed trained"),
        ("UPDATE turns SET first_seen = first_seen + 1 WHERE fate = 'pending'", "first seen at"),
        ("UPDATE turns SET disagreement = disagreement + 1 WHERE arrival = 1", "its tokens say"),
        ("UPDATE turns SET reason = 'not_finite' WHERE reason = 'prompt_truncated'", "its tokens say"),
        ("UPDATE turns SET fate = 'lost' WHERE arrival = 1", "no put can have written"),
        ("UPDATE rollouts SET available_at = available_at + 1 WHERE number > 30", "not as it was put"),
        ("UPDATE rollouts SET version = version + 1 WHERE number = 1", "not as it was put"),
        ("UPDATE rollouts SET success = 1 - success WHERE number = 1", "not as it was put"),
        ("UPDATE rollouts SET reward = reward + 1 WHERE number = 1", "not as it was put"),
        ("UPDATE turns SET version = version + 1 WHERE arrival = 1", "not as it was put"),
        ("DELETE FROM turns WHERE arrival = 2", "declared"),
        ("DELETE FROM payloads WHERE arrival = 2", "missing or damaged"),
        ("UPDATE payloads SET payload = zeroblob(41) WHERE arrival = 2", "missing or damaged"),
        ("UPDATE updates SET watermark = watermark + 1 WHERE number = 4", "update 4 is damaged"),
        ("DELETE FROM updates WHERE number = 1", "update 1 is damaged"),
        ("DELETE FROM updates WHERE number = 4", "the store says"),
    ],
)
def test_a_lie_in_the_store_is_found(run: Path, statement: str, message: str) -> None:
    """Fates, measurements, contents and updates: whatever is changed behind the store's back is named."""
    tamper(run, statement)
    with pytest.raises(DivopdError, match=message):
        audited(run)


class TurnByTurn(Store):
    """The planted bug: every turn of a rollout in a transaction of its own."""

    def _insert(self, rollout: Rollout, available_at: int, digest: bytes, rows: list[tuple[Any, ...]]) -> None:
        super()._insert(rollout, available_at, digest, rows)
        last = self._db.execute("SELECT max(arrival) FROM turns").fetchone()[0]
        for table in ("payloads", "turns"):  # as if killed before the last turn
            self._db.execute(f"DELETE FROM {table} WHERE arrival = ?", (last,))


def test_a_torn_put_is_found(tmp_path: Path) -> None:
    """A rollout with fewer turns than it declared cannot pass for a short one."""
    with TurnByTurn.create(tmp_path / "store.db") as store:
        store.put(make_rollout("e.1", turns=4))
        with pytest.raises(LedgerError, match="declared 4 turns, but the store has 3"):
            audit_ledger(store)


def test_settings_of_a_stranger_are_refused(run: Path) -> None:
    """A journal whose settings make no composer is an error, not a crash."""
    settings = to_json_bytes({"method": "divopd", "batch_size": "many"})
    connection = sqlite3.connect(run / "store.db")
    connection.execute("INSERT INTO settings VALUES (?, ?)", (digest_of(settings), settings))
    watermark, record = connection.execute("SELECT watermark, record FROM updates WHERE number = 0").fetchone()
    digest = entry_digest(b"", 0, watermark, settings, record)
    connection.execute("UPDATE updates SET settings = ?, digest = ? WHERE number = 0", (digest_of(settings), digest))
    connection.commit()
    connection.close()
    with pytest.raises(DivopdError, match="update 0 is damaged"):
        audited(run)


# ── the commands ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_why_tells_every_fate(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence a turn, for every fate, with the update and the reason."""
    with Store.open_read_only(run) as store:
        rollouts = sorted({turn.rollout for turn in store.stored_turns()})
    said = []
    for rollout in rollouts:
        assert main(["why", str(run), rollout]) == 0
        head, *sentences = capsys.readouterr().out.splitlines()
        assert head.startswith(f"rollout {rollout}: ")
        with Store.open_read_only(run) as store:
            taught = [turn.turn for turn in store.teacher_turns(rollout)]
            numbers = sorted([turn.turn for turn in store.turns_of(rollout)] + taught)
        assert [int(line.split()[1]) for line in sentences] == numbers
        assert [number for number in numbers if "the teacher's" in sentences[numbers.index(number)]] == taught
        said += sentences
    text = "\n".join(said)
    for part in (
        "one update after it was first seen, as the 2nd of 2 turns its rollout gave in the first pass",
        "when it was first seen, as the only turn its rollout gave in the first pass",
        "is queued: no update has read it yet",
        "is pending since update",
        "(invalid: prompt_truncated, ",
        "was discarded at update",
        "was stale when it was read at update 3: its policy version 0 is below 1",
        "aged out at update 2: pending since update 0, longer than one update",
        "was the teacher's, which did 'do 0' for a stuck student: no row",
    ):
        assert part in text


def test_why_as_json_agrees_with_the_fates(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same facts for programs."""
    assert main(["why", str(run), "e1.0.2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    with Store.open_read_only(run) as store:
        assert {row["turn"]: (row["fate"], row["update"]) for row in told["turns"]} == {
            turn.turn: turn.fate[:2] for turn in store.turns_of("e1.0.2")
        }
        kept = {turn.turn: (turn.action, len(turn.response_ids)) for turn in store.teacher_turns("e1.0.2")}
    assert {turn["turn"]: (turn["action"], turn["tokens"]) for turn in told["teacher_turns"]} == kept


@pytest.mark.parametrize("update", range(5))
def test_explain_shows_the_whole_decision(run: Path, update: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Selected turns in order with their passes, pending ones, and exits: nothing more and nothing less."""
    assert main(["explain", str(run), str(update), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    with Store.open_read_only(run) as store:
        entry, pending = store.journal(update), store.pending_after(update)
    rows = {
        part: [(r["rollout"], t) for r in told["rollouts"] for t in r[part]]
        for part in ("selected", "pending", "fell_out")
    }
    assert sorted((name, turn["turn"], turn["pass"]) for name, turn in rows["selected"]) == sorted(
        (*key, number) for key, number in zip(entry.selected, entry.passes, strict=True)
    )
    assert [r["rollout"] for r in told["rollouts"] if r["selected"]] == list(
        dict.fromkeys(key[0] for key in entry.selected)
    )
    assert sorted((name, turn["turn"]) for name, turn in rows["pending"]) == sorted(turn.key for turn in pending)
    assert len(rows["fell_out"]) == len(entry.stale) + len(entry.invalid) + len(entry.aged_out)
    assert main(["explain", str(run), str(update)]) == 0
    table = capsys.readouterr().out
    assert f"update {update}, divopd: {len(entry.selected)} turns of" in table
    assert all(key[0] in table for key in entry.selected)


@pytest.mark.parametrize("method", METHODS)
def test_explain_names_a_cap_only_where_there_is_one(
    tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven turns of one rollout in the first pass of an uncapped method do not stand under a cap of 4."""
    capped = method.startswith("divopd") and method != "divopd-focus"
    write_turns(tmp_path / "turns.jsonl", [turn("only", index) for index in range(7)])
    assert main(["replay", str(tmp_path / "turns.jsonl"), "--method", method, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), "0"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert ("cap 4" in table, "no cap" in table) == (capped, not capped)
    passes = [f"pass {number}:" in table for number in (1, 2, 3, 4)]
    assert passes == [capped or method == "divopd-focus"] * 4
    assert main(["explain", str(tmp_path / "run"), "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["cap"] == (4 if capped else None)


def test_explain_of_a_run_without_a_cap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """divopd with `cap: none` has one pass and says so."""
    write_turns(tmp_path / "turns.jsonl", [turn("only", index) for index in range(7)])
    options = ["--method", "divopd", "--cap", "none", "--out", str(tmp_path / "run")]
    assert main(["replay", str(tmp_path / "turns.jsonl"), *options]) == 0
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), "0"]) == 0
    table = capsys.readouterr().out
    assert "no cap" in " ".join(table.split())
    assert "pass" not in table


def test_pending_after_is_what_the_composer_kept(tmp_path: Path) -> None:
    """What the store says stayed pending is what a store of lists keeps."""
    composer, twin = make_test_composer(), MemoryStore()
    with Store.create(tmp_path / "store.db", synchronous="NORMAL") as store:
        kept: list[list[tuple[str, int]]] = []
        epoch = store.begin_learner()
        assert twin.begin_learner() == epoch
        for update in range(4):
            for number in range(5):
                rollout = make_rollout(f"e.{update}.{number}", version=update)
                store.put(rollout)
                twin.put(rollout)
            store.compose(composer, update=update, epoch=epoch)
            twin.compose(composer, update=update, epoch=epoch)
            kept.append([candidate.key for candidate in twin.pending])
        assert [[turn.key for turn in store.pending_after(update)] for update in range(4)] == kept
        assert all(kept)


def test_export_is_a_recording(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every turn in arrival order comes back from the file; an existing file is replaced only with --force."""
    out = tmp_path / "turns.jsonl"
    assert main(["export", str(run), str(out)]) == 0
    with Store.open_read_only(run) as store:
        assert read_turns(out) == list(store.turns())
    out.write_text("precious")
    assert main(["export", str(run / "store.db"), str(out)]) == 2
    assert out.read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert main(["export", str(run), str(out), "--force"]) == 0
    assert main(["export", str(run), str(run / "store.db"), "--force"]) == 2
    audited(run)


def test_export_of_a_settled_run_says_what_is_gone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens that were dropped cannot be exported: one line, and no file."""
    with Store.open(run) as store:
        epoch = store.begin_learner()
        store.acknowledge(2, epoch=epoch)
        store.settle(2, epoch=epoch)
    assert main(["export", str(run), str(run / "turns.jsonl")]) == 2
    assert "was settled" in capsys.readouterr().err
    assert not list(run.glob("turns*"))
    assert main(["audit", "ledger", str(run)]) == 0
    assert "settled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["audit", "ledgr", "RUN"], "did you mean 'ledger'?"),
        (["explain", "RUN", "99"], "it has 5 updates"),
        (["explain", "RUN", "-1"], "it has 5 updates"),
        (["why", "RUN", "nobody"], "no rollout 'nobody'"),
        (["why", "RUN/missing", "nobody"], "expected a run"),
        (["audit", "ledger", "RUN/empty"], "is empty"),
    ],
)
def test_mistakes_get_one_line_and_a_hint(
    run: Path, command: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line on stderr, nothing on stdout."""
    (run / "empty").touch()
    assert main([word.replace("RUN", str(run)) for word in command]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert hint in err


def test_audit_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The account for programs: the parts add up to what was put."""
    assert main(["audit", "ledger", str(run), "--json"]) == 0
    account = json.loads(capsys.readouterr().out)["account"]
    assert account.pop("put") == sum(account.values())
