"""A single run on Ray, with method and network of one's own: the bits of one process, also when a worker is lost."""

import sys
from types import ModuleType

import numpy as np
import pytest
from conftest import assert_same_bits, final_tensors, tiny

from pfeddsh.errors import UserError
from pfeddsh.federation import engines, ray_pool
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread, run
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.federation.workers import pack, read
from pfeddsh.storage.checkpoint import Checkpoints

OWN = """
from torch import nn
from pfeddsh.methods.fedper import FedPer

class Mine(FedPer):
    pass

def net(classes, shape):
    return nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, classes))
"""


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A small data file, and a cache of its own; both can be taken away."""
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    stream, labels = np.random.default_rng(0), np.arange(200) % 4
    pixels = (60 * labels[:, None, None, None] + stream.integers(0, 60, (200, 32, 32, 3))).astype(np.uint8)
    path = tmp_path / "images.npz"
    np.savez(path, x_train=pixels[:150], y_train=labels[:150], x_test=pixels[150:], y_test=labels[150:])
    return path


def test_a_worker_lost_in_mid_round_changes_no_bit_and_no_worker_reads_the_files(images, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    hired, lost = [], []

    class Mortal(ray_pool.RayWorker):
        def __init__(self, *given):
            super().__init__(*given)
            hired.append(self)

        def run(self, call):
            if (call.job, call.visit.step, call.visit.round) == ("local", 1, 1) and not lost:
                lost.append(call)
                self._ray.kill(self._actor)  # first: a quick one would have answered before it died
                return read(call, self._get(self._actor.run.remote(pack(call))))
            return super().run(call)

    monkeypatch.setattr(ray_pool, "RayWorker", Mortal)
    few = {"dataset": str(images), "alpha": 1.0, "schedule": "4+2", "rounds_first": 2, "rounds_later": 1}
    (tmp_path / "own.py").write_text(OWN)
    own = {"method": f"{tmp_path}/own.py:Mine", "model": f"{tmp_path}/own.py:net"}
    serial = run(tiny(**own, **few), tmp_path / "serial")
    config = tiny(**own, **few, engine="ray")
    bench = Workbench(config)
    images.unlink()
    for path in (tmp_path / "cache").rglob("*.npy"):
        path.unlink()  # it stays mapped here, and is found by nobody else
    with one_thread():
        engine = engines.create(config, bench)
        try:
            ledger = Federation(bench, engine, Checkpoints(tmp_path / "ray" / "state"), []).run()
        finally:
            engine.close()
    assert len(lost) == 1 and len(hired) == 3, "two workers, and one in place of the lost"
    assert (ledger.acc, ledger.local) == (serial["acc"], serial["local"])
    assert_same_bits(final_tensors(tmp_path / "ray"), final_tensors(tmp_path / "serial"))


def test_without_ray_it_says_what_to_install(images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'pfeddsh\[ray\]'"):
        run(tiny("fedper", dataset=str(images), engine="ray"), tmp_path / "run")


def test_actors_ask_for_their_part_of_the_gpus(monkeypatch):
    """A stand-in for Ray: here is no GPU."""
    asked = []

    class Ray(ModuleType):
        put, is_initialized = staticmethod(lambda data: data), staticmethod(lambda: True)
        cluster_resources = staticmethod(lambda: {"CPU": 4.0, "GPU": 1.0})

    class Asked:
        def __init__(self, ray, config, data, gpus=0):
            asked.append((config.device, gpus))

        def run(self, call):
            raise UserError("no matter")

        def close(self):
            pass

    monkeypatch.setitem(sys.modules, "ray", Ray("ray"))
    monkeypatch.setattr(ray_pool, "RayWorker", Asked)
    bench = Workbench(tiny("fedavg"))
    for device in ("cuda:1", "cpu"):
        pool = ray_pool.RayPool(tiny("fedavg", device=device, workers=2), bench.dataset)
        with pytest.raises(UserError, match="no matter"):
            pool.submit(Call("local", bench.visit(1, 0, 0))).result()
        pool.close()
    assert asked == [("cuda", 0.5), ("cpu", 0.0)]
    monkeypatch.setattr(Ray, "cluster_resources", staticmethod(lambda: {"CPU": 4.0}))
    with pytest.raises(UserError, match="the Ray cluster has no GPU"):
        ray_pool.RayPool(tiny("fedavg", device="cuda"), bench.dataset)
