"""Imports point one way: no module, and no package, comes back to where it started; lazy imports count too."""

import ast
import inspect
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pfeddsh

ROOT = Path(pfeddsh.__file__).parent


def modules():
    """Every module of the package but the app that Flower copies, by its dotted name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "app" not in parts:
            found[".".join(("pfeddsh", *parts)).removesuffix(".__init__")] = path
    return found


def imports():
    """Which modules each module names, wherever in the file."""
    known = modules()
    graph = {}
    for name, path in known.items():
        wanted = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pfeddsh"):
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= {module if module in known else node.module for module in full}
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names if alias.name.startswith("pfeddsh")}
        graph[name] = wanted - {name}
    return graph


def package(module):
    return module.split(".")[1] if "." in module else module


def test_no_module_imports_itself_in_a_circle():
    TopologicalSorter(imports()).prepare()  # raises CycleError, which names the circle


def test_no_package_does_either():
    graph = {}
    for module, wanted in imports().items():
        graph.setdefault(package(module), set()).update(map(package, wanted))
    assert graph["methods"] >= {"mechanisms", "messages"}, "the graph is real"
    TopologicalSorter({name: wanted - {name} for name, wanted in graph.items()}).prepare()


def test_in_live_the_parts_know_each_other_one_way():
    graph = {}
    for module, wanted in imports().items():
        part = module.split(".")[2] if module.startswith("pfeddsh.live.") else None
        others = {name.split(".")[2] for name in wanted if name.startswith("pfeddsh.live.")}
        if part:
            graph.setdefault(part, set()).update(others - {part})
    assert "coordinator" not in graph["site"] and not graph["site"] & {"cli", "demo"}
    TopologicalSorter(graph).prepare()


def test_no_two_classes_share_a_name():
    """But for what is the same in each: the settings of a method."""
    found = {}
    for module, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name != "Settings" and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_the_public_interface_is_documented_and_typed():
    assert (ROOT / "py.typed").exists() and pfeddsh.__version__
    for name in set(pfeddsh.__all__) - {"__version__"}:
        entry = getattr(pfeddsh, name)
        assert entry.__doc__, name
        if inspect.isfunction(entry):
            assert entry.__annotations__.keys() == inspect.signature(entry).parameters.keys() | {"return"}, name


def test_the_reference_names_the_whole_interface_and_every_field_of_the_results(reference):
    page = (ROOT.parents[1] / "docs" / "api.md").read_text()
    assert [name for name in pfeddsh.__all__ if f"`{name}`" not in page] == []
    fields = set(
        re.findall(r"`(\w+)", "".join(line.split(" | ")[0] for line in page.splitlines() if line[:3] == "| `"))
    )
    found = reference("fedavg").results.keys() | reference("pfeddsh").results.keys()
    assert {"acc", "accepted", "protocol"} <= found <= fields
    inner = {name for field in ("payload_kib", "seconds", "uploads", "refused") for name in reference().results[field]}
    assert [name for name in inner if f"`{name}`" not in page] == []


def test_a_configuration_knows_neither_methods_nor_federation():
    graph, reached, ahead = imports(), set(), ["pfeddsh.config"]
    while ahead:
        reached |= (new := graph.get(ahead.pop(), set()) - reached)
        ahead += new
    assert "pfeddsh.models.registry" in reached, "the graph is real"
    assert {package(module) for module in reached} & {"methods", "federation", "configure", "live"} == set()


def test_only_models_name_the_default_network():
    others = {name: path for name, path in modules().items() if package(name) != "models"}
    assert [name for name, path in others.items() if "lenet" in path.read_text().lower()] == []
    del others["pfeddsh.data.known"]  # some data have that size
    assert [
        name for name, path in others.items() if re.search(r"\b32, 32\b|\b32x32\b|\b3072\b", path.read_text())
    ] == []


@pytest.mark.parametrize("module", ["pfeddsh", "pfeddsh.cli", "pfeddsh.live.site.join"])
def test_what_only_watches_or_tells_what_to_type_imports_neither_torch_nor_flower(module):
    """`pfeddsh join` stays for months beside every site, and torch takes 200 MB; `--help` should not wait for it."""
    heavy = "[name for name in ('torch', 'flwr', 'ray', 'safetensors.torch') if name in sys.modules]"
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print({heavy})"], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"


def test_the_public_names_are_all_there():
    assert all(getattr(pfeddsh, name) is not None for name in pfeddsh.__all__)
    assert set(pfeddsh.__all__) <= set(dir(pfeddsh))
    with pytest.raises(AttributeError, match="no attribute 'Konfig'"):
        _ = pfeddsh.Konfig
