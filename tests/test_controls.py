"""Local-only accuracies are kept across runs, and never mixed up."""

from conftest import comparable, tiny

from pfeddsh.federation.run import run
from pfeddsh.results import controls


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
    controls.save(config, "data", [float(k) for k in range(10)])
    assert controls.load(config, "data") == {k: float(k) for k in range(10)}
    assert controls.load(tiny("fedper"), "data") == controls.load(config, "data")
    assert controls.load(config, "other data") == {}
    for change in ({"seed": 1}, {"alpha": 1.0}, {"lr": 0.5}, {"rounds_first": 7}, {"partition": "iid"}):
        assert controls.load(tiny(**change), "data") == {}, change


def test_schedules_share_the_controls_of_their_common_beginning(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path))
    controls.save(tiny(schedule="6+2x2"), "data", [float(k) for k in range(10)])
    found = controls.load(tiny(schedule="6+4"), "data")
    assert set(found) == set(tiny(schedule="6+4").plan().batch(1))
