import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

from mlflow.entities import Metric, Param


class MlflowClient:
    def __init__(self, tracking_uri: str) -> None:
        folder = Path(urlparse(tracking_uri).path)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "told.json"
        self.told: dict[str, Any] = {"status": "RUNNING", "params": {}, "metrics": [], "files": {}, "tags": {}}

    def get_experiment_by_name(self, name: str) -> None:
        self.told["experiment"] = name

    def create_experiment(self, name: str) -> str:
        assert name == self.told["experiment"]
        return "1"

    def create_run(self, experiment: str, *, run_name: str) -> SimpleNamespace:
        assert experiment == "1"
        self.told["name"] = run_name
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, run: str, *, params: Sequence[Param] = (), metrics: Sequence[Metric] = ()) -> None:
        assert run == "r"
        self.told["params"] |= dict(params)
        self.told["metrics"] += [(metric.key, metric.value, metric.step) for metric in metrics]
        self._write()

    def log_dict(self, run: str, content: dict[str, Any], path: str) -> None:
        assert run == "r"
        self.told["files"][path] = content
        self._write()

    def set_tag(self, run: str, name: str, value: str) -> None:
        assert run == "r"
        self.told["tags"][name] = value
        self._write()

    def set_terminated(self, run: str) -> None:
        assert run == "r"
        self.told["status"] = "FINISHED"
        self._write()

    def _write(self) -> None:
        self.file.write_text(json.dumps(self.told), encoding="utf-8")
