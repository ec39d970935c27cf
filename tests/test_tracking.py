"""Tracking: what TensorBoard and MLflow read back is what the run's own files say, whatever happened on the way."""

import json
import math
import shutil
import sys
import warnings
from collections import defaultdict

import pytest
from conftest import comparable, tiny

from pfeddsh.errors import UserError
from pfeddsh.federation.run import resume, run
from pfeddsh.tracking import TRACKERS, tracking
from pfeddsh.tracking.settings import settings

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("tensorboard")

SHORT = {"schedule": "4+2x2", "rounds_first": 3, "rounds_later": 2}
GATED = {**SHORT, "options": {"protection": "gate", "hidden": 8}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs with one MLflow database for all, as on a user's disk."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        yield tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def tracked(runs):
    """A finished run that both followed."""
    config, out = tiny("pfeddsh-hyper", **GATED), runs / "tracked"
    with tracking(list(TRACKERS), config, out) as tracker:
        run(config, out, [tracker])
    return out


def client(out):
    return mlflow.MlflowClient(f"sqlite:///{out.parent / 'mlflow.db'}")


def mlflow_run(out):
    return client(out).get_run(json.loads((out / "mlflow.json").read_text())["run_id"])


def mlflow_points(out):
    """Every metric with its whole history, in order of steps."""
    found = mlflow_run(out)
    return {
        name: sorted((point.step, point.value) for point in client(out).get_metric_history(found.info.run_id, name))
        for name in found.data.metrics
    }


def accumulator(out):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(out / "tensorboard"))
    found.Reload()
    return found


def tensorboard_points(out):
    found = accumulator(out)
    return {name: [(point.step, point.value) for point in found.Scalars(name)] for name in found.Tags()["scalars"]}


def expected(out):
    """The points that events.jsonl and results.json ask for; rounds are counted by their lines."""
    points, rounds, ends = defaultdict(list), 0, []
    for line in (out / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        kind = event.pop("event")
        rounds += kind == "round"
        if kind == "step":
            ends.append(rounds)
            for layer, counts in (event["capacity"] or {}).items():
                for name, count in counts.items():
                    points[f"step/capacity/{layer}/{name}"].append((rounds, count))
        for key in event.keys() - {"step", "round", "clients", "refused", "capacity"}:
            if event[key] is not None:
                points[f"{kind}/{key}"].append((rounds, event[key]))
    results = json.loads((out / "results.json").read_text())
    points["step/pa"] = list(zip(ends, results["pa"], strict=True))
    for key in ("acc_end_mean", "pa_mean", "ri_last", "ri_cumulative", "worst_drop"):
        points[f"final/{key}"] = [(rounds, results[key])]
    for key in results["payload_kib"]:
        points[f"final/payload_kib/{key}"] = [(rounds, results["payload_kib"][key])]
    for key in ("round_mean", "server_round_mean", "total"):
        points[f"final/seconds/{key}"] = [(rounds, results["seconds"][key])]
    return dict(points)


def close(points):
    """TensorBoard keeps numbers in single precision."""
    return {name: [(at, pytest.approx(value, rel=1e-6)) for at, value in series] for name, series in points.items()}


def timeless(points):
    return {name: series for name, series in points.items() if "seconds" not in name}


# A run from beginning to end


def test_tensorboard_shows_what_the_run_wrote(tracked):
    assert {"round/loss", "round/up", "step/ri", "step/capacity/conv1/new", "step/pa"} <= expected(tracked).keys()
    assert tensorboard_points(tracked) == close(expected(tracked))


def test_mlflow_shows_what_the_run_wrote(tracked):
    assert mlflow_points(tracked) == expected(tracked)
    assert mlflow_run(tracked).info.status == "FINISHED"
    assert mlflow_run(tracked).info.run_name == "tracked"


def test_mlflow_has_the_whole_configuration_and_the_results(tracked, tmp_path):
    params = mlflow_run(tracked).data.params
    assert params == {key: str(value) for key, value in settings(tiny("pfeddsh-hyper", **GATED)).items()}
    assert (params["schedule"], params["options.hidden"], params["options.protection"]) == ("4+2x2", "8", "gate")
    client(tracked).download_artifacts(mlflow_run(tracked).info.run_id, "", str(tmp_path))
    for name in ("results.json", "config.toml"):
        assert (tmp_path / name).read_bytes() == (tracked / name).read_bytes()


def test_tensorboard_has_the_whole_configuration(tracked):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    def part(name):
        metadata = accumulator(tracked).SummaryMetadata(f"_hparams_/{name}")
        return HParamsPluginData.FromString(metadata.plugin_data.content)

    told = part("session_start_info").session_start_info.hparams
    assert {key: getattr(value, value.WhichOneof("kind")) for key, value in told.items()} == settings(
        tiny("pfeddsh-hyper", **GATED)
    )
    columns = [info.name.tag for info in part("experiment").experiment.metric_infos]
    assert set(columns) <= expected(tracked).keys()
    assert part("session_end_info").session_end_info.status == 1  # success


def test_being_watched_changes_nothing(tracked, reference):
    assert comparable(json.loads((tracked / "results.json").read_text())) == comparable(
        reference("pfeddsh-hyper", **GATED).results
    )


def test_a_finished_run_told_again_has_every_point_once(tracked, runs):
    out = shutil.copytree(tracked, runs / "again")
    with tracking([], tiny("pfeddsh-hyper", **GATED), out) as tracker:
        resume(out, [tracker])
    assert tensorboard_points(out) == close(expected(out))
    assert mlflow_points(out) == expected(out)


# Interruptions


class Interruption:
    """Ctrl-C after the second round of the second step was told to the trackers, but not to the event log."""

    def event(self, kind, facts):
        if (kind, facts["step"], facts.get("round")) == ("round", 2, 1):
            raise KeyboardInterrupt


@pytest.mark.parametrize("end", ["interrupted", "killed"])
def test_a_resumed_run_goes_on_where_it_was(runs, end, monkeypatch):
    """A killed process never closes its trackers, and loses what it had not yet sent."""
    monkeypatch.setattr("pfeddsh.tracking.mlflow.FLUSH_SECONDS", math.inf)
    config, out = tiny("fedper", **SHORT), runs / end
    tracker = tracking(list(TRACKERS), config, out)
    with pytest.raises(KeyboardInterrupt):
        run(config, out, [tracker, Interruption()])
    if end == "interrupted":
        tracker.__exit__(KeyboardInterrupt)
    first = mlflow_run(out).info
    assert first.status == {"interrupted": "KILLED", "killed": "RUNNING"}[end]
    assert len(mlflow_points(out).get("round/loss", [])) == {"interrupted": 5, "killed": 0}[end]
    with tracking([], config, out) as tracker:
        resume(out, [tracker])
    assert tensorboard_points(out) == close(expected(out))
    assert timeless(mlflow_points(out)) == timeless(expected(out))
    assert {name: [at for at, _ in series] for name, series in mlflow_points(out).items()} == {
        name: [at for at, _ in series] for name, series in expected(out).items()
    }
    assert (mlflow_run(out).info.run_id, mlflow_run(out).info.status) == (first.run_id, "FINISHED")


def test_a_tracker_can_join_when_the_run_is_over(runs, reference):
    out = shutil.copytree(reference("fedper", **SHORT).out, runs / "joined")
    with tracking(list(TRACKERS), tiny("fedper", **SHORT), out) as tracker:
        resume(out, [tracker])
    assert tensorboard_points(out) == close(expected(out))
    assert mlflow_points(out) == expected(out)


def test_a_finished_run_without_its_log_still_shows_the_end(tracked, tmp_path):
    out = shutil.copytree(tracked, tmp_path / "run", ignore=shutil.ignore_patterns("mlflow.json", "events.jsonl"))
    with tracking(["tensorboard"], tiny("pfeddsh-hyper", **GATED), out) as tracker:
        resume(out, [tracker])
    ends = {name: series for name, series in expected(tracked).items() if name == "step/pa" or "final" in name}
    assert tensorboard_points(out) == close(ends)


def test_a_run_its_store_forgot_is_told_anew(tracked, runs):
    out = shutil.copytree(tracked, runs / "forgotten")
    (out / "mlflow.json").write_text('{"run_id": "00000000000000000000000000000000"}')
    with tracking([], tiny("pfeddsh-hyper", **GATED), out) as tracker:
        resume(out, [tracker])
    assert mlflow_points(out) == expected(out)


# What goes wrong


LIBRARIES = pytest.mark.parametrize(
    ("name", "library"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")]
)


@LIBRARIES
def test_a_missing_library_is_told_before_anything_is_written(tmp_path, monkeypatch, name, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"not installed; pip install 'pfeddsh\[{name}\]'"):
        tracking([name], tiny(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@LIBRARIES
def test_a_library_missing_on_another_machine_does_not_stop_a_resumption(tmp_path, monkeypatch, name, library):
    (tmp_path / {"tensorboard": "tensorboard", "mlflow": "mlflow.json"}[name]).touch()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.warns(UserWarning, match="not installed.*the run continues without it"):
        tracking([], tiny(), tmp_path)


def watched(out, names=("tensorboard",)):
    """Run with warnings counted."""
    config = tiny("fedper", **SHORT)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tracking(names, config, out) as tracker:
            results = run(config, out, [tracker])
    return results, [str(warning.message) for warning in told if "stopped tracking" in str(warning.message)]


def test_a_tracker_that_cannot_start_is_named_once_and_the_others_go_on(runs, reference):
    out = runs / "blocked"
    out.mkdir()
    (out / "tensorboard").write_text("in the way")
    results, told = watched(out, list(TRACKERS))
    assert comparable(results) == comparable(reference("fedper", **SHORT).results)
    assert len(told) == 1
    assert told[0].startswith("tensorboard stopped tracking, the run goes on")
    assert mlflow_points(out) == expected(out)


def test_a_tracker_that_fails_on_the_way_is_named_once(tmp_path, reference, monkeypatch):
    from torch.utils.tensorboard import SummaryWriter

    def full_disk(self, name, value, at, *, original=SummaryWriter.add_scalar):
        if at == 3:
            raise OSError(28, "No space left on device")
        original(self, name, value, at)

    monkeypatch.setattr(SummaryWriter, "add_scalar", full_disk)
    results, told = watched(tmp_path / "run")
    assert comparable(results) == comparable(reference("fedper", **SHORT).results)
    assert len(told) == 1
    assert "No space left on device" in told[0]


def test_a_server_that_does_not_answer_is_named_once(tmp_path, reference, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    results, told = watched(tmp_path / "run", ["mlflow"])
    assert comparable(results) == comparable(reference("fedper", **SHORT).results)
    assert len(told) == 1
    assert "127.0.0.1" in told[0]
    assert not (tmp_path / "mlflow.db").exists()


def test_a_run_that_never_began_leaves_no_trace(tracked, tmp_path):
    out = shutil.copytree(tracked, tmp_path / "run", ignore=shutil.ignore_patterns("tensorboard", "mlflow.json"))
    with pytest.raises(UserError, match="already holds a run"):
        watched(out, list(TRACKERS))
    assert not (out / "tensorboard").exists()
    assert not (out / "mlflow.json").exists()
    assert list(tmp_path.iterdir()) == [out]
