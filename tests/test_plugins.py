"""Methods of one's own, by name: the README's example in every engine, and errors that say what is wrong."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest
from conftest import assert_same_bits, comparable, final_tensors, tiny
from live_sites import FakeNetwork, federation, run_in_process, shards

import pfeddsh
from pfeddsh import plugins
from pfeddsh.compare.keys import stops
from pfeddsh.errors import UserError
from pfeddsh.federation.run import run
from pfeddsh.live.site.export import export
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.live.site.model import read_model
from pfeddsh.methods import registry
from pfeddsh.storage import controls

README, EXAMPLE = (Path(__file__).parents[1] / name for name in ("README.md", "examples/own.py"))
SMALL = ["--schedule", "4+2", "--set", "rounds_first=3", "--set", "rounds_later=2", "--set", "sample_fraction=0.5"]
NAME = "mymethod:FedPer"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, the current one, with the README's example as pasted."""
    section = README.read_text().partition("## Add a method")[2].partition("\n## ")[0]
    (tmp_path / "mymethod.py").write_text(section.partition("```python\n")[2].partition("```")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("mymethod", "broken", "helped", "offering", "net"):
        sys.modules.pop(name, None)


def command(*arguments, **environment):
    """The command, whose path does not have the current folder by itself."""
    return commands.told(Path("log"), *arguments, COLUMNS="300", **environment)


def told(out):
    return comparable(json.loads((out / "results.json").read_text()))


def interrupted(out):
    """A run that is killed within its rounds; it is deleted if the blow came too late, as on a busy machine."""
    begun = commands.Command(Path("log"), "run", "--method", NAME, *SMALL, "--set", "workers=2", "--out", out)
    log = out / "events.jsonl"
    while begun.poll() is None and not (log.exists() and log.read_text().count("\n") >= 2):
        time.sleep(0.005)
    if begun.poll() is None:
        begun.send(signal.SIGKILL)
    if (code := begun.wait()) == 0:
        shutil.rmtree(out)
    else:
        assert code == commands.KILLED, Path("log").read_text()
    return code != 0


def test_the_readme_runs_as_pasted_on_a_pool_resumes_and_is_fedper(folder):
    assert any(interrupted(folder / "pool") for _ in range(commands.ATTEMPTS))
    command("resume", "pool")
    first = told(folder / "pool")
    command("run", "--method", "fedper", *SMALL, "--set", "engine=serial", "--out", "shipped")
    assert first["method"] == NAME
    shipped = told(folder / "shipped")
    assert (first["acc"], first["local"]) == (shipped["acc"], shipped["local"])
    ours, theirs = (final_tensors(folder / name) for name in ("pool", "shipped"))
    assert_same_bits({k: v for k, v in ours.items() if "state" in k}, {k: v for k, v in theirs.items() if "state" in k})


def test_it_can_be_compared_also_on_a_network_of_ones_own(folder):
    (folder / "net.py").write_text(NETWORK)
    settings = ["--schedules", "4+2", *SMALL[2:], "--set", "model=net:net", "--jobs", "2", "--out", "out"]
    command("compare", "--methods", f"fedper,{NAME}", *settings)
    found = [told(folder / "out" / f"digits-{name}-4+2-seed0") for name in ("fedper", "mymethod.FedPer")]
    assert found[0]["acc"] == found[1]["acc"]


@pytest.mark.parametrize("name", ["fedavg-prior", "odpfl_hn", "mine:Mine", "../../code/mine.py:Mine", "/etc/mine.py:M"])
def test_a_name_becomes_a_file_name_that_stays_in_its_folder(name):
    made = plugins.file_name(name)
    assert Path(made).name == made and not made.startswith(".")
    assert made == name or plugins.is_reference(name)


def test_a_file_in_another_folder_runs_on_a_pool(folder):
    (folder / "work").mkdir()
    (folder / "mymethod.py").rename(folder / "work" / "my-method.py")
    results = run(tiny("work/my-method.py:FedPer", engine="pool", schedule="4", rounds_first=2), folder / "run")
    assert results["acc"]


OWN_NETWORK = {"model": "net.py:net", "shape": (3, 32, 32)}


def test_sites_run_methods_and_networks_that_they_allow(folder):
    (folder / "net.py").write_text(NETWORK)
    paths, allowed = shards(folder / "data", 3), (NAME, "net.py:net")
    federation(folder / "server", method=NAME, options={}, steps=1, **OWN_NETWORK)
    network = FakeNetwork()
    sites = [network.add(k, folder / f"site-{k}", paths[k]) for k in range(3)]
    for site in sites:
        site.allowed = allowed
    run_in_process(folder / "server", network)
    assert json.loads((folder / "server" / "results.json").read_text())["acc"]
    with pytest.raises(UserError, match=r"join with --allow net\.py:net"):
        read_model(sites[0].home)
    SiteConfig(name="site-0", data=str(paths[0]), allow=allowed).save(sites[0].home)
    assert read_model(sites[0].home).network.size == 3 * 32 * 32 * 10 + 10
    export(sites[0].home, folder / "out")
    assert (folder / "out" / "network.py").read_text() == NETWORK


@pytest.mark.parametrize(
    ("module", "settings"),
    [("mymethod", {"method": NAME}), ("net", {"method": "fedavg", **OWN_NETWORK, "model": "net:net"})],
)
def test_a_site_imports_nothing_that_it_was_not_told_to_allow(folder, module, settings):
    (folder / "net.py").write_text(NETWORK)
    paths = shards(folder / "data", 1)
    site = FakeNetwork().add(0, folder / "site", paths[0])
    told = federation(folder / "server", options={}, **settings).for_sites()
    sys.modules.pop(module, None)
    with pytest.raises(UserError, match=f"join with --allow {module}:"):
        site._adopt(told)
    assert module not in sys.modules


TINY = {"schedule": "4", "rounds_first": 1, "sample_fraction": 0.5, "workers": 1}


NETWORK = """
from torch import nn

def net(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


def script(folder, *lines):
    """Run a script that defines method and network itself, then these lines."""
    own = (folder / "mymethod.py").read_text() + NETWORK
    (folder / "script.py").write_text("\n".join([own, "import pfeddsh", *lines]))
    return subprocess.run([sys.executable, "script.py"], capture_output=True, text=True)


def test_a_class_of_the_running_script_runs_on_a_pool_and_resumes(folder):
    start = f'    print(pfeddsh.run(pfeddsh.Config(method=FedPer, model=net, **{TINY}), "out")["method"])'
    done = script(folder, "if __name__ == '__main__':", start)
    assert done.stdout.strip() == f"{folder.resolve() / 'script.py'}:FedPer", done.stderr
    results = json.loads((folder / "out" / "results.json").read_text())
    assert results["protocol"]["model"] == f"{folder.resolve() / 'script.py'}:net"
    (folder / "out" / "results.json").unlink()
    command("resume", "out")
    assert json.loads((folder / "out" / "results.json").read_text())["acc"] == results["acc"]


def test_a_script_that_would_start_its_run_in_every_worker_is_told_so(folder):
    done = script(folder, f'pfeddsh.run(pfeddsh.Config(method=FedPer, **{TINY}), "out")')
    assert done.returncode != 0
    assert "script.py starts a run when it is imported; put that below `if __name__ == '__main__':`" in done.stderr


def test_a_class_of_a_notebook_needs_the_serial_engine(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    made = type("Mine", (registry.find("fedper").method,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", made, raising=False)
    assert pfeddsh.Config(method=made, engine="serial").method == "__main__:Mine"
    with pytest.raises(UserError, match=r"%%writefile mine.py .* name it mine:Mine, or use engine='serial'"):
        pfeddsh.Config(method=made)
    with pytest.raises(UserError, match=r"%%writefile mine.py .* name it mine:Mine$"):
        pfeddsh.compare({"methods": [made], "set": {"engine": "serial"}}, "out")


def test_in_python_a_class_stands_for_its_name(folder):
    made = registry.find(NAME).method
    assert pfeddsh.Config(method=made).method == NAME
    with pytest.raises(UserError, match="define it at the top of a module"):
        pfeddsh.Config(method=type("Hidden", (made,), {"__qualname__": "f.<locals>.Hidden"}))


def test_what_fails_in_a_worker_alone_is_told_as_it_is(folder):
    trap = "import sys\nif 'forker' in sys.argv[0]:\n    raise RuntimeError('no licence on this machine')\n"
    (folder / "mymethod.py").write_text(trap + (folder / "mymethod.py").read_text())
    with pytest.raises(UserError, match="cannot be imported: RuntimeError: no licence on this machine") as error:
        run(tiny(NAME, engine="pool"), folder / "run")
    assert "memory" not in str(error.value)


BAD = {
    "nowhere:Method": "there is no module nowhere in .*; start in its folder, or set PYTHONPATH",
    "mymethod:FedPerr": "unknown name 'FedPerr'; did you mean FedPer",
    "mymethod:weighted_mean": "is no class derived from pfeddsh.methods.base.Method",
    "broken:Method": r"broken cannot be imported: ZeroDivisionError: .*broken.py, line 1\)",
    "helped:Method": "helped cannot be imported: ModuleNotFoundError: No module named 'helper'",
    "mymethod:": "write package.module:name",
    "../mymethod:FedPer": "write package.module:name",
    "nowhere.py:FedPer": "there is no file /.*/nowhere.py",
    "broken.py:Method": r"broken.py cannot be imported: ZeroDivisionError: .*broken.py, line 1\)",
    "mymethod:Method": "it lacks init, download, local, aggregate",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_explained_before_anything_is_written(folder, name):
    (folder / "broken.py").write_text("1 / 0")
    (folder / "helped.py").write_text("import helper")
    with pytest.raises(UserError, match=BAD[name]):
        tiny(name)


@pytest.fixture
def offer(folder, monkeypatch):
    """Install a package in the user's folder that has these entry points."""

    def install(entry_points):
        about = folder / "offering-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(folder)

    return install


def test_an_installed_package_offers_methods(folder, offer):
    (folder / "mymethod.py").rename(folder / "offering.py")
    offer("[pfeddsh.methods]\nfedper-theirs = offering:FedPer\nfedavg = offering:No\n")
    assert "fedper-theirs" in command("methods")
    assert registry.find("fedavg").method.__module__ == "pfeddsh.methods.fedavg"
    results = run(tiny("fedper-theirs", engine="pool", rounds_first=2, schedule="4"), folder / "run")
    assert results["method"] == "fedper-theirs"


def test_an_installed_package_offers_networks(folder, offer):
    (folder / "net.py").write_text(NETWORK)
    offer("[pfeddsh.models]\ntheirs = net:net\nbroken = nowhere:net\nlenet = nowhere:net\n")
    listed = command("models")
    assert "theirs" in listed and "there is no module nowhere" in listed and "resnet8" in listed
    results = run(tiny("fedavg", model="theirs", engine="pool", rounds_first=2, schedule="4"), folder / "run")
    assert results["protocol"]["model"] == "theirs"
    small = {"rounds_first": 2, "model": "theirs", "sample_fraction": 0.4}
    found = pfeddsh.compare({"methods": ["fedavg"], "schedules": ["4"], "set": small}, folder / "out", jobs=1)
    assert found["digits-fedavg-4-seed0"]["acc"] == results["acc"]


def test_a_comparison_from_python_is_that_of_the_command_line(folder):
    """The same names, keys and states: here the second computes nothing that the first has done."""
    (folder / "net.py").write_text(NETWORK)
    made, net = (plugins.load("part", name) for name in (NAME, "net:net"))
    small = {"rounds_first": 2, "rounds_later": 1, "sample_fraction": 0.5}
    plan = {"methods": ["fedper", made], "schedules": ["4+2"], "set": {**small, "model": net}}
    first = pfeddsh.compare(plan, folder / "out", jobs=2)
    assert list(first) == ["digits-fedper-4+2-seed0", "digits-mymethod.FedPer-4+2-seed0"]
    assert (
        len({json.dumps(found["acc"]) for found in first.values()}) == 1 and (folder / "out" / "report.html").exists()
    )
    settings = ["--set", "rounds_first=2", "--set", "rounds_later=1", *SMALL[-2:], "--set", "model=net:net"]
    told = command("compare", "--methods", f"fedper,{NAME}", "--schedules", "4+2", *settings, "--out", "b", "--dry-run")
    assert "0 batches to compute" in told and "time: 0:00:00" in told, "all of it is shared"
    (folder / "plan.toml").write_text((folder / "out" / "compare.toml").read_text())
    assert pfeddsh.compare(folder / "plan.toml", folder / "out") == first


def test_a_comparison_from_python_says_what_failed(folder):
    trap = "import sys\nif 'forker' in sys.argv[0]:\n    raise RuntimeError('no licence')\n"
    (folder / "mymethod.py").write_text(trap + (folder / "mymethod.py").read_text())
    with pytest.raises(UserError, match=r"digits-mymethod.FedPer-4-seed0 failed.*no licence.*; its log is .*txt"):
        pfeddsh.compare({"methods": [NAME], "schedules": ["4"], "set": {"rounds_first": 1}}, folder / "out")
    with pytest.raises(UserError, match="unknown"):
        pfeddsh.compare({"method": ["fedavg"]}, folder / "other")


def test_whoever_edits_a_method_does_not_meet_its_old_states(folder):
    before = stops(tiny(NAME), "images")
    (folder / "helper.py").write_text("")
    assert stops(tiny(NAME), "images") == before, "what runs is what was imported"
    sys.modules.pop("mymethod")
    after = stops(tiny(NAME), "images")
    assert not {stop.key for stop in before} & {stop.key for stop in after}
    assert [stop.like for stop in before] == [stop.like for stop in after]


@pytest.mark.parametrize("helper", ["helper.py", "parts/__init__.py", "parts/deep/layers.py"])
@pytest.mark.parametrize("spec", ["net:net", "net.py:net", "their-net"])
def test_whoever_edits_what_a_network_imports_meets_neither_its_states_nor_its_controls(folder, offer, spec, helper):
    (folder / "net.py").write_text(NETWORK)
    (folder / "parts" / "deep").mkdir(parents=True)
    (folder / "parts" / "__init__.py").touch()
    offer("[pfeddsh.models]\ntheir-net = net:net\n")
    found = []
    for edit in ("width = 1", "width = 2"):
        (folder / helper).write_text(edit)
        for name in [name for name, module in list(sys.modules.items()) if hasattr(module, "net")]:
            sys.modules.pop(name)  # as in another process
        config = tiny("fedavg", model=spec)
        found.append({controls.path(config, "images", 1), *(stop.key for stop in stops(config, "images"))})
    assert not found[0] & found[1]


def test_what_a_notebook_defines_shares_nothing(monkeypatch):
    def net(classes, shape):
        return None

    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(net, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "net", net, raising=False)
    config = tiny("fedavg", model="__main__:net")
    assert controls.path(config, "images", 1) != controls.path(config, "images", 1)


def test_a_report_does_not_import_what_a_run_names(folder):
    run(tiny(NAME, schedule="4", rounds_first=1), folder / "run")
    sys.modules.pop("mymethod")
    (folder / "mymethod.py").write_text("1 / 0")
    assert "mymethod:FedPer" in command("report", "run", "--out", "page.html") + (folder / "page.html").read_text()


def test_the_example_with_a_network_and_a_method_of_its_own_runs(folder):
    done = subprocess.run([sys.executable, EXAMPLE, "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(": ") for line in done.stdout.splitlines())
    first, shipped, own = told
    assert (first, shipped) == ("on the pool", "digits-fedavg-6+2-seed0") and "HalfWay" in own
    assert told[first] == told[own]
