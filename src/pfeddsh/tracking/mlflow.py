"""MLflow: a run of the experiment `pfeddsh` on the server of MLFLOW_TRACKING_URI, else in a file beside the runs."""

import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.storage.files import write_text
from pfeddsh.tracking.settings import settings

FLUSH_SECONDS = 5.0
LIMIT = 1000  # metrics MLflow takes at once
SURROUNDINGS = {  # unless the user says otherwise
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # a server that is gone holds up the run for seconds, not for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class MLflow:
    """Remembers the id of its run in mlflow.json, and what the store already has: MLflow cannot forget a point."""

    name = "mlflow"

    def __init__(self, config: Config, out: Path) -> None:
        for key, value in SURROUNDINGS.items():
            os.environ.setdefault(key, value)
        try:
            from mlflow import MlflowClient, entities, exceptions
        except ImportError:
            raise UserError("MLflow is not installed; pip install 'pfeddsh[mlflow]'") from None
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table it creates
        self._config, self._out, self._error = config, out, exceptions.MlflowException
        self._connect, self._entities = MlflowClient, entities

    def open(self) -> None:
        place = self._out.parent.resolve()
        self._artifacts = None if "MLFLOW_TRACKING_URI" in os.environ else (place / "mlflow-artifacts").as_uri()
        self._client = self._connect(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{place / 'mlflow.db'}"))
        self._pending: list[tuple[str, float, int]] = []
        self._flushed = time.monotonic()
        self._run, self._known = self._again() or (self._new(), set())

    def log(self, points: dict[str, float], at: int) -> None:
        new = [(name, value, at) for name, value in points.items() if (name, at) not in self._known]
        self._pending += new
        self._known |= {(name, at) for name, _, at in new}
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def close(self, status: str) -> None:
        self._flush()
        if status == "FINISHED":
            for name in ("config.toml", "results.json"):
                self._client.log_artifact(self._run, str(self._out / name))
        self._client.set_terminated(self._run, status)

    def _flush(self) -> None:
        now = int(time.time() * 1000)
        for start in range(0, len(self._pending), LIMIT):
            points = self._pending[start : start + LIMIT]
            metrics = [self._entities.Metric(name, value, now, at) for name, value, at in points]
            self._client.log_batch(self._run, metrics)
        self._pending, self._flushed = [], time.monotonic()

    def _again(self) -> tuple[str, set[tuple[str, int]]] | None:
        """The run this directory had before an interruption, and its points; None if the store does not know it."""
        try:
            run = str(json.loads((self._out / "mlflow.json").read_text())["run_id"])
            names = self._client.get_run(run).data.metrics
        except FileNotFoundError:
            return None
        except self._error as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        self._client.update_run(run, status="RUNNING")
        return run, {(name, point.step) for name in names for point in self._client.get_metric_history(run, name)}

    def _new(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pfeddsh")
        with suppress(self._error):  # it exists already
            self._client.create_experiment(name, self._artifacts)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            raise UserError(f"MLflow has no experiment '{name}' and cannot create it")
        run = str(self._client.create_run(experiment.experiment_id, run_name=self._out.resolve().name).info.run_id)
        params = [self._entities.Param(key, str(value)) for key, value in settings(self._config).items()]
        self._client.log_batch(run, params=params)
        write_text(self._out / "mlflow.json", json.dumps({"run_id": run}) + "\n")
        return run
