"""Loggers: JSON lines always, and each tracker by its real package, offline, read back with its own reader."""

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from divopd.config import LoggerName
from divopd.errors import InputError, MissingExtraError
from divopd.records import EvaluationRecord, UpdateRecord, decode_evaluation, decode_update
from divopd.run.loggers import LOGGERS, METRICS, Loggers, Table
from doubles.small_records import make_evaluation_record, make_update_record

SETTINGS = {"method": "divopd", "learner": {"lr": 1e-4}}


def update(number: int) -> UpdateRecord:
    """One of 64 rows; the first has nothing to compare its log probabilities with."""
    record = make_update_record(number, loss=0.5 / (number + 1))
    assert record.learner is not None
    gap = record.learner.logprob_gap if number else None
    learner = replace(record.learner, seconds={"step": 0.1}, logprob_gap=gap)
    return replace(record, batch=replace(record.batch, rows=64), learner=learner)


def evaluation(version: int) -> EvaluationRecord:
    return make_evaluation_record(version, success_rate=10.0 * version)


SEEN = "You | see\n<a> desk 1 & a lamp."
TABLE = Table(("task", "turn", "seen"), [["desk/1", 0, SEEN], ["desk/1", 1, "Nothing happens."]])


def tell(folder: Path, *names: LoggerName) -> None:
    """Three updates and a late evaluation, with two turns of a rollout to look at."""
    with Loggers(folder, names, SETTINGS, rollouts=lambda: TABLE) as loggers:
        for number in range(3):
            loggers.updated(update(number))
        loggers.evaluated(evaluation(2))
        loggers.told("the teacher died (exit code 1) and is started again")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]


def test_json_lines_have_every_figure(tmp_path: Path) -> None:
    """One object a line, from which the record can be read again, with its kind."""
    tell(tmp_path)
    told = lines(tmp_path)
    assert [one["kind"] for one in told] == ["update", "update", "update", "evaluation"]
    assert [decode_update(one) for one in told[:3]] == [update(n) for n in range(3)]
    assert decode_evaluation(told[3]) == evaluation(2)
    assert (told[2]["rows"], told[2]["learner"]["loss"], told[2]["wall_s"]) == (64, 0.5 / 3, 30.0)


def test_a_resumed_run_tells_nothing_twice(tmp_path: Path) -> None:
    """What is there is not written again, and a line that a crash cut off is written whole."""
    tell(tmp_path)
    whole = (tmp_path / METRICS).read_bytes()
    (tmp_path / METRICS).write_bytes(whole[:-10])
    tell(tmp_path)
    assert (tmp_path / METRICS).read_bytes() == whole
    (tmp_path / METRICS).write_text("something else\n", encoding="utf-8")
    with pytest.raises(InputError, match="move it away"):
        Loggers(tmp_path, [], {})


def test_a_logger_that_fails_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named once and left out; the others and the lines go on."""

    class Failing:
        package = "json"

        def __init__(self, folder: Path, settings: Any) -> None:
            self.calls = 0

        def log(self, *_: Any) -> None:
            raise OSError("disk full")

        def show(self, *_: Any) -> None:
            raise AssertionError("it was left out")

        def close(self) -> None:
            raise AssertionError("it was left out")

    name = cast(LoggerName, "failing")  # of no tracker there is
    LOGGERS[name] = Failing
    try:
        tell(tmp_path, name)
    finally:
        del LOGGERS[name]
    assert capsys.readouterr().err.count("the logger failing failed") == 1
    assert len(lines(tmp_path)) == 4


class Showing:
    """A tracker that remembers what it was shown."""

    package = "json"
    shown: ClassVar[list[tuple[int, Table]]] = []

    def __init__(self, folder: Path, settings: Any) -> None:
        del folder, settings
        self.shown.clear()

    def log(self, kind: str, number: int, figures: Any) -> None: ...

    def show(self, version: int, table: Table) -> None:
        self.shown.append((version, table))

    def close(self) -> None: ...


def test_rollouts_are_shown_once_for_every_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is asked for them without a tracker, nor again by a resumed run; a failure to get them ends nothing."""
    name = cast(LoggerName, "showing")
    LOGGERS[name] = Showing
    asked: list[int] = []

    def rollouts() -> Table | None:
        asked.append(1)
        if len(asked) == 2:
            raise OSError("the store is away")
        return None if len(asked) == 3 else TABLE

    try:
        with Loggers(tmp_path, [], SETTINGS, rollouts=rollouts) as loggers:
            loggers.evaluated(evaluation(0))
        assert asked == []
        with Loggers(tmp_path, [name], SETTINGS, rollouts=rollouts) as loggers:
            for version in (0, 1, 1, 2, 3):
                loggers.evaluated(evaluation(version))
    finally:
        del LOGGERS[name]
    assert Showing.shown == [(1, TABLE)]
    assert len(asked) == 2
    assert capsys.readouterr().err.count("no rollouts to show from now on (the store is away)") == 1
    assert [line["version"] for line in lines(tmp_path)] == [0, 1, 2, 3]


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    """The error says which extra to install."""

    class Missing:
        package = "no_such_package"

    name = cast(LoggerName, "missing")  # of no tracker there is
    LOGGERS[name] = Missing
    try:
        with pytest.raises(MissingExtraError, match=r"\.\[missing\]"):
            Loggers(tmp_path, [name], {})
    finally:
        del LOGGERS[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_tensorboard(tmp_path: Path) -> None:
    """Its own reader finds every scalar at its update, and the config."""
    pytest.importorskip("tensorboard", reason="for want of the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("update/rows")] == [(n, 64.0) for n in range(3)]
    assert events.Scalars("evaluation/success_rate")[0].step == 2
    assert "update/learner/seconds/step" in events.Tags()["scalars"]
    assert "update/learner/logprob_gap" not in events.Tags()["scalars"]
    assert [e.step for e in events.Scalars("update/learner/logprob_gap/mean")] == [1, 2]
    (shown,) = events.Tensors("rollouts/text_summary")
    (text,) = (value.decode() for value in shown.tensor_proto.string_val)
    assert shown.step == 2
    assert text.splitlines()[0] == "| task | turn | seen |"
    assert text.splitlines()[2] == "| desk/1 | 0 | You &#124; see<br>&lt;a> desk 1 &amp; a lamp. |"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline run is in the run's folder, with every figure in its log and nothing in the home."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # to import it makes folders that stay until the end
    wandb = pytest.importorskip("wandb", reason="for want of the extra wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    tell(tmp_path, "wandb")
    deadline = time.monotonic() + 60
    history = _history(tmp_path)
    while len(history) < 5 and time.monotonic() < deadline:  # a process of its own writes it
        time.sleep(0.2)
        history = _history(tmp_path)
    assert [row["update/rows"] for row in history if "update/rows" in row] == [64.0] * 3
    assert [row["evaluation/version"] for row in history if "evaluation/version" in row] == [2, 2]
    assert [row["evaluation/success_rate"] for row in history if "evaluation/success_rate" in row] == [20.0]
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/**/*.table.json")
    content = json.loads(table.read_text(encoding="utf-8"))
    assert (tuple(content["columns"]), content["data"]) == TABLE
    wandb.teardown()  # its process would live as long as this one


def _history(folder: Path) -> list[dict[str, Any]]:
    """The logged rows. After 7 bytes the file is records, each with a checksum, its length and its kind."""
    from wandb.proto import wandb_internal_pb2

    content = next(folder.glob("wandb/offline-run-*/run-*.wandb")).read_bytes()
    rows = []
    place = 7
    while place + 7 <= len(content):
        size = int.from_bytes(content[place + 4 : place + 6], "little")
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content[place + 7 : place + 7 + size])
        place += 7 + size
        if record.HasField("history"):
            rows.append({item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
    return rows


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own client finds the run, its settings and every figure by update."""
    pytest.importorskip("mlflow", reason="for want of the extra mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    tell(tmp_path, "mlflow")
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("divopd")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["learner/lr"] == "0.0001"
    losses = client.get_metric_history(run.info.run_id, "update/learner/loss")
    assert [(m.step, m.value) for m in losses] == [(n, 0.5 / (n + 1)) for n in range(3)]
    file = client.download_artifacts(run.info.run_id, "rollouts/000002.json", str(tmp_path))
    table = json.loads(Path(file).read_text(encoding="utf-8"))
    assert (tuple(table["columns"]), table["data"]) == TABLE
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "rollouts/000002.json", "type": "table"}]


def test_what_mlflow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double of its client, for machines without it: the run's folder, every figure by update, and the end."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "doubles" / "packages"))
    with monkeypatch.context() as context:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
            context.delitem(sys.modules, name)
        tell(tmp_path, "mlflow")
        for name in ("mlflow", "mlflow.entities", "mlflow.tracking"):
            del sys.modules[name]
    told = json.loads((tmp_path / "mlruns" / "told.json").read_text(encoding="utf-8"))
    assert (told["experiment"], told["name"], told["status"]) == ("divopd", tmp_path.name, "FINISHED")
    assert told["params"] == {"method": "divopd", "learner/lr": "0.0001"}
    losses = [(value, step) for key, value, step in told["metrics"] if key == "update/learner/loss"]
    assert losses == [(0.5 / (n + 1), n) for n in range(3)]
    assert ["evaluation/success_rate", 20.0, 2] in told["metrics"]
    assert told["files"] == {"rollouts/000002.json": {"columns": list(TABLE.columns), "data": TABLE.rows}}
    assert json.loads(told["tags"]["mlflow.loggedArtifacts"]) == [{"path": "rollouts/000002.json", "type": "table"}]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own storage, in the run's folder, has every figure by update."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="for want of the extra trackio")
    from trackio.sqlite_storage import SQLiteStorage

    tell(tmp_path, "trackio")
    rows = SQLiteStorage.get_logs("divopd", tmp_path.name)
    assert [row["update/rows"] for row in rows if "update/rows" in row] == [64.0] * 3
    assert any(row.get("evaluation/success_rate") == 20.0 for row in rows)
    (table,) = (row["rollouts"] for row in rows if "rollouts" in row)
    assert [list(line.values()) for line in table["_value"]] == TABLE.rows
    assert list((tmp_path / "trackio").glob("*.db"))
