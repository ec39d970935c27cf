"""What the tests share: a tiny configuration, finished runs of it, and comparisons that leave out the clock."""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
from filelock import FileLock
from torch import Tensor

from pfeddsh.config import Config
from pfeddsh.configure import build
from pfeddsh.federation.run import run
from pfeddsh.messages import bundle
from pfeddsh.methods.task import Task
from pfeddsh.storage.checkpoint import Checkpoints
from pfeddsh.storage.records import read_record
from pfeddsh.storage.settled import Settled
from pfeddsh.storage.store import Store

TINY: dict[str, Any] = {
    "schedule": "6+2x2",
    "rounds_first": 3,
    "rounds_later": 2,
    "sample_fraction": 0.4,
    "engine": "serial",
    "workers": 2,
}
BASIC = ("fedavg", "fedper", "local")


# The files that take longest, longest first.
LONG = (
    "live_flower",
    "rivals",
    "plugins",
    "models_methods",
    "pfeddsh",
    "compare",
    "controls_existing",
    "run",
    "documents",
)


def lacking(reason: str) -> NoReturn:
    """A program that a test needs is not there: fine on a laptop, a failure where all tests are meant to run."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def pytest_configure() -> None:
    """Test processes share the cores already: threads of each would only wait for those of the others.

    And what they start need not compile again what it imports, of which it may do more than anything else.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, or it runs alone at the end while a worker idles."""
    order = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all test processes of this session have in common."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


class Run(NamedTuple):
    """A finished run: its folder and what results.json says."""

    out: Path
    results: dict[str, Any]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in events(self.out) if event["event"] == kind]


def tiny(method: str = "fedavg", **changes: Any) -> Config:
    """Ten clients of the embedded digits in three steps: a second or two of work."""
    return build({"method": method, **TINY, **changes})


def comparable(results: dict[str, Any]) -> dict[str, Any]:
    """Results without what may differ between two runs of the same configuration."""
    return {key: value for key, value in results.items() if key not in ("seconds", "environment")}


def events(out: Path) -> list[dict[str, Any]]:
    """The events of a run, without the clock."""
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "seconds" not in key} for line in lines]


def final_tensors(out: Path) -> dict[str, Tensor]:
    """State and memories at the end of a run."""
    return snapshot_tensors(max((out / "state").glob("snapshot-*.safetensors")))


def snapshot_tensors(path: Path) -> dict[str, Tensor]:
    """State and memories as of one snapshot."""
    record = read_record(path)
    beside = record.facts.get("store", {"packs": [], "settled": {}})
    store, settled = Store(path.parent / "clients"), Settled(path.parent / "settled")
    store.adopt(beside["packs"])
    own = bundle({key: own for key, own in store.items() if not key.startswith("rows/")})
    return record.tensors | own.tensors | {f"state:{k}": settled.read(v) for k, v in beside["settled"].items()}


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@contextmanager
def nothing_to_warn_of() -> Iterator[None]:
    """Whatever warns in here fails the test; but not what the garbage collector finds of another test meanwhile."""
    with warnings.catch_warnings(action="error"):
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the processes they start, leave the user's cache alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFEDDSH_CACHE", str(shared_folder(tmp_path_factory, "cache")))
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real one; it loads pages as a reader's does."""
    try:
        from playwright import sync_api
    except ModuleNotFoundError:
        lacking("playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        lacking("no Chromium found on the PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], timeout=180_000
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def task() -> Task:
    """What everyone knows before anyone has joined."""
    return Task.create(10, 0)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Finished serial runs of the tiny configuration, computed once; tests must not write into their folders.

    Their states are those of the moment before they ended.
    """
    folder = shared_folder(tmp_path_factory, "reference")

    def get(method: str = "fedavg", **changes: Any) -> Run:
        config = tiny(method, **changes)
        own = folder / hashlib.sha256(config.toml().encode()).hexdigest()[:16]
        own.mkdir(exist_ok=True)
        with FileLock(own / ".lock"):  # another test process may be at it
            if (results := own / "run" / "results.json").exists():
                return Run(own / "run", json.loads(results.read_text()))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Checkpoints, "thin", lambda self: None)
                return Run(own / "run", run(config, own / "run"))

    return get


@pytest.fixture
def all_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs keep the states they would have continued from."""
    monkeypatch.setattr(Checkpoints, "thin", lambda self: None)
