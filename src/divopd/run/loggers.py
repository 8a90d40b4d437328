"""Where the figures of a run are told besides its store: JSON lines always, other trackers as the config asks for.

Nothing is sent anywhere: every tracker writes into its own folder inside that of the run, and is looked at, or synced,
with its own command. A tracker that fails is left out from then on; the run goes on.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from divopd.config import LoggerName
from divopd.errors import InputError, MissingExtraError
from divopd.printable import tell
from divopd.records import EvaluationRecord, UpdateRecord, encode_evaluation, encode_update

METRICS = "metrics.jsonl"
NUMBER = {"update": "update", "evaluation": "version"}  # what counts figures of a kind
PROJECT = "divopd"
ROLLOUTS = "rollouts"  # what the tables of sample rollouts are called


class Table(NamedTuple):
    """Lines of text and numbers under the names of their columns."""

    columns: tuple[str, ...]
    rows: list[list[Any]]


class Logger(Protocol):
    """One tracker. Figures are flat: `learner/loss` is inside `learner`. `package` is what it imports."""

    package: str

    def log(self, kind: str, number: int, figures: Mapping[str, float]) -> None: ...

    def show(self, version: int, table: Table) -> None:
        """Sample rollouts, a turn a line, as they were when a policy version was evaluated."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """`tensorboard --logdir RUN/tensorboard`"""

    package = "tensorboard"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # imports the package tensorboard

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", f"```\n{json.dumps(settings, indent=2)}\n```")

    def log(self, kind: str, number: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(f"{kind}/{name}", value, number)
        self._writer.flush()

    def show(self, version: int, table: Table) -> None:
        self._writer.add_text(ROLLOUTS, _markdown(table), version)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """`wandb sync RUN/wandb/offline-run-…` sends it, when the user wants that."""

    package = "wandb"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        config = {"project": PROJECT, "name": folder.name, "config": dict(settings), "dir": str(folder)}
        quiet = wandb.Settings(silent=True, console="off")
        self._run = wandb.init(**config, mode="offline", settings=quiet, reinit="create_new")
        for kind, number in NUMBER.items():  # evaluations may come late: each kind counts by itself
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/{number}")

    def log(self, kind: str, number: int, figures: Mapping[str, float]) -> None:
        self._run.log({f"{kind}/{NUMBER[kind]}": number} | {f"{kind}/{name}": value for name, value in figures.items()})

    def show(self, version: int, table: Table) -> None:
        import wandb

        shown = wandb.Table(columns=list(table.columns), data=table.rows)
        self._run.log({f"evaluation/{NUMBER['evaluation']}": version, f"evaluation/{ROLLOUTS}": shown})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """`MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/mlruns`"""

    package = "mlflow"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions want to be told that files are meant
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._tables = Metric, list[dict[str, str]]()
        self._client = MlflowClient(tracking_uri=(folder / "mlruns").resolve().as_uri())
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        params = [Param(name, str(value)[:500]) for name, value in _flat(settings, keep=str).items()]
        self._client.log_batch(self._run, params=params[:100])

    def log(self, kind: str, number: int, figures: Mapping[str, float]) -> None:
        metrics = [self._metric(f"{kind}/{name}", value, 0, number) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def show(self, version: int, table: Table) -> None:
        """As its own log_table writes it, which would need pandas."""
        path = f"{ROLLOUTS}/{version:06d}.json"
        self._client.log_dict(self._run, {"columns": list(table.columns), "data": table.rows}, path)
        self._tables.append({"path": path, "type": "table"})
        self._client.set_tag(self._run, "mlflow.loggedArtifacts", json.dumps(self._tables))

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Trackio:
    """`TRACKIO_DIR=RUN/trackio trackio show`"""

    package = "trackio"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("TRACKIO_DIR", str((folder / "trackio").resolve()))  # read when it is imported
        import trackio

        self._run = trackio.init(
            PROJECT, name=folder.name, config=dict(settings), embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def log(self, kind: str, number: int, figures: Mapping[str, float]) -> None:
        self._run.log({f"{kind}/{name}": value for name, value in figures.items()}, step=number)

    def show(self, version: int, table: Table) -> None:
        import trackio

        self._run.log({ROLLOUTS: trackio.Table(columns=list(table.columns), data=table.rows)}, step=version)

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[LoggerName, type[Any]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def require(names: Sequence[LoggerName]) -> None:
    """A MissingExtraError if the package of one of these loggers is not installed."""
    for name in names:
        if find_spec(LOGGERS[name].package) is None:
            raise MissingExtraError(f"the logger {name}", name)


class Loggers:
    """All loggers of a run, as its observer; what a resumed run repeats is told once only.

    `rollouts` gives some rollouts to look at, or None if there are none yet; it is asked at every evaluation, and only
    if there is a tracker to show them.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[LoggerName],
        settings: Mapping[str, Any],
        *,
        rollouts: Callable[[], Table | None] = lambda: None,
    ) -> None:
        require(names)
        self._rollouts = rollouts
        self._told = _told(folder / METRICS)
        self._loggers: dict[LoggerName, Logger] = {name: LOGGERS[name](folder, settings) for name in names}
        self._lines: IO[str] = (folder / METRICS).open("a", encoding="utf-8")

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._loggers):
            self._try(name, lambda logger: logger.close())
        self._lines.close()

    def updated(self, record: UpdateRecord) -> None:
        self._log("update", record.update, encode_update(record))

    def evaluated(self, record: EvaluationRecord) -> None:
        if self._log("evaluation", record.version, encode_evaluation(record)) and self._loggers:
            self._show(record.version)

    def told(self, sentence: str) -> None:
        """What is no figure is not logged."""

    def _log(self, kind: str, number: int, figures: Mapping[str, Any]) -> bool:
        """False if it was told before."""
        if (kind, number) in self._told:
            return False
        self._told.add((kind, number))
        self._lines.write(json.dumps({"kind": kind, **figures}) + "\n")
        self._lines.flush()
        flat = _flat({name: value for name, value in figures.items() if name != NUMBER[kind]}, keep=float)
        for name in list(self._loggers):
            self._try(name, lambda logger: logger.log(kind, number, flat))
        return True

    def _show(self, version: int) -> None:
        try:
            table = self._rollouts()
        except Exception as error:  # a look at rollouts must not end a run, either
            self._rollouts = lambda: None
            tell(f"loggers get no rollouts to show from now on ({error})")
            return
        if table is not None:
            for name in list(self._loggers):
                self._try(name, lambda logger: logger.show(version, table))

    def _try(self, name: LoggerName, call: Callable[[Logger], None]) -> None:
        try:
            call(self._loggers[name])
        except Exception as error:  # whatever a tracker raises, it must not end a run of days
            del self._loggers[name]
            tell(f"the logger {name} failed and is left out from now on ({error})")


def _told(path: Path) -> set[tuple[str, int]]:
    """What an earlier process of this run has told; a last line that was cut off by its death is taken away."""
    if not path.exists():
        return set()
    whole = path.read_bytes().rpartition(b"\n")
    if whole[2]:
        os.truncate(path, len(whole[0]) + len(whole[1]))
    try:
        lines = [json.loads(line) for line in whole[0].splitlines()]
        return {(line["kind"], line[NUMBER[line["kind"]]]) for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not the figures of a run ({error!r}); move it away to go on") from None


def _markdown(table: Table) -> str:
    """A table as TensorBoard shows it; what is seen may hold bars and line breaks."""

    def cell(value: Any) -> str:
        text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
        return "<br>".join(text.splitlines())

    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def _flat(values: Mapping[str, Any], *, keep: Callable[[Any], Any], above: str = "") -> dict[str, Any]:
    """Nested figures by their path. With `keep` float, what is no number is left out."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, keep=keep, above=f"{above}{name}/")
        elif keep is not float or (isinstance(value, int | float) and not isinstance(value, bool)):
            flat[f"{above}{name}"] = keep(value)
    return flat
