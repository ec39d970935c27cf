"""Local-only accuracies are kept across runs, and never mixed up."""

import threading
import time

import pytest
from conftest import comparable, tiny

from pfeddsh.federation.run import run
from pfeddsh.storage import controls


def test_a_second_method_reuses_the_controls_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    first = run(tiny("fedavg"), tmp_path / "first")
    monkeypatch.setattr("pfeddsh.federation.workbench.Workbench._control", None)  # nothing left to compute
    second = run(tiny("fedper"), tmp_path / "second")
    assert second["local"] == first["local"]


def test_an_unreadable_entry_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    first = run(tiny(), tmp_path / "first")
    for path in (tmp_path / "cache" / "controls").iterdir():
        path.write_text("[1, 2")
    assert comparable(run(tiny(), tmp_path / "second")) == comparable(first)


def test_what_a_control_depends_on_is_in_its_key(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path))
    config = tiny()
    controls.complete(config, "data", config.plan().steps, float)
    assert controls.load(config, "data") == {k: float(k) for k in range(10)}
    for same in (tiny("fedper"), tiny(existing="guard"), tiny(later="frozen")):
        assert controls.load(same, "data") == controls.load(config, "data")
    assert controls.load(config, "other data") == {}
    for change in (
        {"seed": 1},
        {"alpha": 1.0},
        {"lr": 0.5},
        {"rounds_first": 7},
        {"partition": "iid"},
        {"hold_out": 0.2},
        {"sampling": "round-robin"},
    ):
        assert controls.load(tiny(**change), "data") == {}, change


def test_schedules_share_the_controls_of_their_common_beginning(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path))
    controls.complete(tiny(schedule="6+2x2"), "data", (1, 2, 3), float)
    found = controls.load(tiny(schedule="6+4"), "data")
    assert set(found) == set(tiny(schedule="6+4").plan().batch(1))


def test_each_control_is_kept_as_soon_as_it_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path))
    config = tiny()
    first, second, third = config.plan().batch(1)[:3]

    def killed_at_the_third(client):
        if client == third:
            raise KeyboardInterrupt
        return float(client)

    with pytest.raises(KeyboardInterrupt):
        controls.complete(config, "data", [1], killed_at_the_third)
    assert controls.load(config, "data") == {first: float(first), second: float(second)}
    asked = []
    controls.complete(config, "data", [1], lambda client: asked.append(client) or 0.0)
    assert asked == list(config.plan().batch(1)[2:])


def test_a_control_another_process_works_on_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path))
    config, asked, begun = tiny(), [], threading.Event()

    def slowly(client):
        begun.set()
        time.sleep(0.02)
        asked.append(client)
        return float(client)

    other = threading.Thread(target=controls.complete, args=(config, "data", [1], slowly))
    other.start()
    begun.wait()
    found = controls.complete(config, "data", [1], slowly)
    other.join()
    assert found == {k: float(k) for k in config.plan().batch(1)}
    assert sorted(asked) == sorted(found), "nobody was computed twice"


def test_a_cache_that_cannot_be_written_is_only_a_missed_saving(tmp_path, monkeypatch):
    (tmp_path / "controls").write_text("in the way")
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path))
    assert set(controls.complete(tiny(), "data", [1], float)) == set(tiny().plan().batch(1))
