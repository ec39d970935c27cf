"""Every method on networks other than LeNet: it runs, or says in one line why not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same_bits, final_tensors
from torch.overrides import TorchFunctionMode

from pfeddsh.configure import build
from pfeddsh.data.datasets import Dataset
from pfeddsh.errors import UserError
from pfeddsh.federation import workbench
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread, resume, run
from pfeddsh.federation.workbench import Workbench
from pfeddsh.mechanisms.replay import INVERSIONS
from pfeddsh.messages import bundle
from pfeddsh.methods import registry
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.records import digest

SMALL = {"hidden": 16, "images": 24, "iterations": 2, "codes": 8, "pool": 8}
REFUSED = {
    "fedweit": "channels",
    "hr": "decoder",
    "hr-local-head": "decoder",
    "pfeddsh-hyper-gate": "channels",
    "pfeddsh-paper": "channels",
    "pfeddsh-paper-gate": "channels",
    "pfeddsh-paper-gate-replay": "channels",
}


def blobs(shape: tuple[int, ...], seed: int = 0) -> Dataset:
    """Three classes that any network can tell apart."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(40, 215, (3, *shape))
    labels = [np.arange(count) % 3 for count in (150, 60)]
    images = [np.clip(centres[y] + rng.normal(0, 30, (len(y), *shape)), 0, 255).astype(np.uint8) for y in labels]
    mean, std = np.full(shape[0], 0.5, np.float32), np.full(shape[0], 0.25, np.float32)
    names = ("a", "b", "c")
    return Dataset("blobs", 3, names, images[0], labels[0], images[1], labels[1], mean, std, f"blobs{shape}{seed}")


def config(method: str, **changes: Any) -> Any:
    known = registry.find(method).method.Settings.model_fields
    options = {name: value for name, value in SMALL.items() if name in known} | changes.pop("options", {})
    protocol = {"schedule": "4+2", "rounds_first": 2, "rounds_later": 1, "sample_fraction": 0.5, "alpha": 1.0}
    return build({"method": method, "engine": "serial", "lr": 0.05, "options": options, **protocol, **changes})


@pytest.fixture(autouse=True)
def short_inversions(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(INVERSIONS["ours"], images=SMALL["images"], iterations=SMALL["iterations"])
    monkeypatch.setitem(INVERSIONS, "ours", few)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(shape: tuple[int, ...]) -> None:
        monkeypatch.setattr(workbench, "load", lambda *_, **__: blobs(shape))

    return use


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """At the end, everything that clients sent must be as it was: the journal is written while the run goes on."""
    sent = []

    def note(checkpoints: Checkpoints, moment: Any, parts: Any) -> None:
        sent.append((record := bundle(parts), digest(record)))

    monkeypatch.setattr(Checkpoints, "round", note)
    yield
    assert all(digest(record) == before for record, before in sent)


@pytest.mark.parametrize("method", REFUSED)
def test_methods_for_lenet_alone_leave_what_was_sent(method: str, data: Any, tmp_path: Path, untouched: None) -> None:
    data((3, 32, 32))
    assert run(config(method), tmp_path / "run")["refused"]["uploads"] == 0


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("method", list(registry.METHODS))
@pytest.mark.parametrize(("model", "shape"), [("convnet", (1, 9, 12)), ("mlp", (7, 1, 1))])
def test_every_method_runs_or_says_why_not(method: str, model: str, shape: tuple[int, ...], data: Any, tmp_path: Path):
    data(shape)
    if method in REFUSED:
        with pytest.raises(UserError, match=REFUSED[method]):
            run(config(method, model=model), tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return
    results = run(config(method, model=model), tmp_path / "run")
    assert None not in results["acc"][-1] and None not in results["local"]
    assert results["refused"] == {"uploads": 0, "clients": {}}
    for name, tensor in final_tensors(tmp_path / "run").items():
        assert tensor.isfinite().all(), name


@pytest.mark.parametrize("model", ["resnet20", "resnet18"])
def test_larger_networks_train(model: str, data: Any, tmp_path: Path) -> None:
    data((3, 8, 8))
    one = {"schedule": "4", "rounds_first": 1, "sample_fraction": 0.25, "lr": 0.001}
    results = run(config("fedavg", model=model, **one), tmp_path / "run")
    assert None not in results["acc"][-1] and results["refused"]["uploads"] == 0
    tensors = final_tensors(tmp_path / "run")
    assert not torch.equal(tensors["state:theta"], Workbench(config("fedavg", model=model, **one)).task.theta0)


@pytest.mark.parametrize("method", ["pfeddsh-deviation", "pfeddsh-hyper", "pfeddsh-hyper-snapshot"])
@pytest.mark.parametrize("personal", ["all", "head", "norm+head", "dense"])
def test_deviations_lie_on_the_chosen_part(method: str, personal: str, data: Any, tmp_path: Path) -> None:
    data((3, 8, 8))
    run(config(method, model="resnet8", options={"personal": personal}), tmp_path / "run")
    sizes = {"all": 78042 - 7 * 65, "head": 3 * 65, "norm+head": 3 * 65 + 2 * 336, "dense": 3 * 65}
    tensors = final_tensors(tmp_path / "run")
    own = [t for name, t in tensors.items() if name.endswith(("deviation", "state:b2"))]
    assert own and {len(tensor) for tensor in own} == {sizes[personal]}
    if method != "pfeddsh-deviation":
        assert tensors["state:W2"].shape == (sizes[personal], 16) and tensors["state:W2"].any()


def test_the_gate_needs_the_whole_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"personal = all"):
        run(config("pfeddsh-hyper-gate", options={"personal": "head"}), tmp_path / "run")


def test_a_hypernetwork_that_would_not_fit_is_refused(data: Any, tmp_path: Path) -> None:
    data((3, 32, 32))
    with pytest.raises(UserError, match=r"11,178,051 weights takes 22\.9 GB"):
        run(config("pfedhn", model="resnet18", options={"hidden": 512}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "pfeddsh"])
def test_serial_and_pool_and_resumed_runs_of_a_module_agree_to_the_bit(method: str, tmp_path: Path) -> None:
    few = {"model": "resnet8", "schedule": "3+2", "rounds_first": 2, "rounds_later": 1, "sample_fraction": 0.6}
    plain = {"alpha": 100.0, "workers": 2, "dataset": str(_npz(tmp_path))}
    serial = run(config(method, **few | plain), tmp_path / "serial")
    pool = run(config(method, **few | plain, engine="pool"), tmp_path / "pool")
    assert serial["acc"] == pool["acc"] and serial["local"] == pool["local"]
    assert_same_bits(final_tensors(tmp_path / "serial"), final_tensors(tmp_path / "pool"))
    with pytest.raises(KeyboardInterrupt):
        run(config(method, **few | plain), tmp_path / "stopped", [Interrupt()])
    assert resume(tmp_path / "stopped")["acc"] == serial["acc"]
    assert_same_bits(final_tensors(tmp_path / "serial"), final_tensors(tmp_path / "stopped"))


class Interrupt:
    """Ctrl-C in the second round."""

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "round" and facts["round"] == 1:
            raise KeyboardInterrupt


def _npz(folder: Path) -> Path:
    data, path = blobs((12, 12, 3)), folder / "data.npz"
    np.savez(path, x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test)
    return path


FACTORIES = {torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.eye, torch.tensor, torch.linspace}


class NoBareFactories(TorchFunctionMode):
    """What is made from nothing lies on the CPU, whatever the device; `out=` and `device=` say where."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES and not {"device", "out", "generator"} & kwargs.keys():
            raise AssertionError(f"{func.__name__} makes a tensor on the CPU")
        return func(*args, **kwargs)


ONE_OF_EACH = {entry.method: name for name, entry in reversed(registry.METHODS.items())}.values()


@pytest.mark.parametrize(
    ("method", "model"), [(name, "lenet") for name in registry.METHODS] + [(name, "convnet") for name in ONE_OF_EACH]
)
def test_clients_make_tensors_from_tensors_alone(method: str, model: str, data: Any, monkeypatch: Any, tmp_path: Path):
    """So that local work, evaluation and replay need nothing but data and records on the device to run there."""
    data((3, 32, 32))
    if model != "lenet" and method in REFUSED:
        pytest.skip("refused")
    bench = Workbench(config(method, model=model, rounds_first=1))
    ordinary = Workbench.run

    def watched(self: Workbench, call: Any) -> Any:
        with NoBareFactories():
            return ordinary(self, call)

    monkeypatch.setattr(Workbench, "run", watched)
    with one_thread():
        Federation(bench, Serial(bench), Checkpoints(tmp_path / "state"), []).train()
    with pytest.raises(AssertionError, match="on the CPU"), NoBareFactories():
        torch.zeros(1)
