"""A site's model outside of the federation: the exported module, ONNX, and prediction give what the site is served."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from pfeddsh.cli import app
from pfeddsh.data.images import Fit, decode
from pfeddsh.errors import UserError
from pfeddsh.live.site import exported
from pfeddsh.live.site.export import export
from pfeddsh.live.site.model import read_model
from pfeddsh.live.site.predict import find_images, predict
from pfeddsh.messages import Record
from pfeddsh.models import registry
from pfeddsh.models.fast import GATES
from pfeddsh.models.lenet import LeNet
from pfeddsh.storage.records import write_record

NAMES = ["cat", "dog", "owl", "fox", "hen"]
FACTS: dict[str, Any] = {
    "classes": NAMES,
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.0],
    "image_size": 32,
    "channels": 3,
    "method": "pfeddsh",
    "step": 2,
    "samples": 40,
}


def site(home: Path, gates: torch.Tensor | None = None, **changes: Any) -> Record:
    """A folder with a model of five classes whose statistics are those of some images."""
    home.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(7)
    network = LeNet(len(NAMES))
    theta = network.init(generator)
    tensors = {"theta": theta, "statistics": network.calibrate(theta, images(generator), gates)}
    record = Record(tensors if gates is None else {**tensors, "gates": gates}, FACTS | changes)
    write_record(home / "model.safetensors", record)
    return record


def images(generator: torch.Generator, count: int = 64) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=generator)


def imported(folder: Path) -> ModuleType:
    """The exported model.py as a stranger would import it."""
    spec = importlib.util.spec_from_file_location("stranger", folder / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def some_gates(kind: str) -> torch.Tensor | None:
    drawn = torch.rand(GATES, generator=torch.Generator().manual_seed(3))
    return {"none": None, "hard": (drawn > 0.3).float(), "soft": drawn}[kind]


@pytest.mark.parametrize("kind", ["none", "hard", "soft"])
def test_the_module_computes_what_the_site_is_served(tmp_path: Path, kind: str) -> None:
    gates = some_gates(kind)
    record = site(tmp_path / "home", gates)
    export(tmp_path / "home", tmp_path / "out")
    batch = images(torch.Generator().manual_seed(1), 50)
    served = LeNet(len(NAMES)).forward(record["theta"], batch, record["statistics"], gates)
    with torch.no_grad():
        found = imported(tmp_path / "out").load(tmp_path / "out")(batch)
    torch.testing.assert_close(found, served, rtol=1e-6, atol=1e-6)
    ungated = LeNet(len(NAMES)).forward(record["theta"], batch, record["statistics"])
    assert (kind == "none") == torch.allclose(ungated, served, atol=1e-3)  # so the gates were not simply left out


def test_the_export_stands_alone(tmp_path: Path) -> None:
    site(tmp_path / "home")
    written = export(tmp_path / "home", tmp_path / "out")
    assert sorted(path.name for path in written) == ["model.json", "model.py", "network.py", "weights.safetensors"]
    assert "pfeddsh" not in (tmp_path / "out" / "model.py").read_text()
    facts = json.loads((tmp_path / "out" / "model.json").read_text())
    assert facts["classes"] == NAMES and facts["mean"] == FACTS["mean"] and facts["std"] == [0.2, 0.3, 1e-3]
    assert {"conv1.weight", "norm1.running_mean", "fc3.bias"} <= load_file(
        tmp_path / "out" / "weights.safetensors"
    ).keys()
    picture = draw(tmp_path / "picture.png", 3)
    (prediction,) = predict(read_model(tmp_path / "home"), [picture])
    said = subprocess.run(
        [sys.executable, "-I", tmp_path / "out" / "model.py", picture], capture_output=True, text=True, check=True
    ).stdout
    assert said == f"{picture}: {prediction.label} ({prediction.probability:.1%})\n"


def test_the_onnx_graph_computes_the_same_for_any_batch(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs pfeddsh[onnx]")
    from onnx.reference import ReferenceEvaluator

    gates = some_gates("soft")
    record = site(tmp_path / "home", gates)
    export(tmp_path / "home", tmp_path / "out", onnx=True)
    batch = images(torch.Generator().manual_seed(1), 3)
    served = LeNet(len(NAMES)).forward(record["theta"], batch, record["statistics"], gates)
    graph = onnx.load(tmp_path / "out" / "model.onnx")
    (found,) = ReferenceEvaluator(graph).run(["logits"], {"images": batch.numpy()})
    np.testing.assert_allclose(found, served.numpy(), rtol=1e-5, atol=1e-5)
    assert {entry.key: json.loads(entry.value) for entry in graph.metadata_props}["classes"] == NAMES


def test_without_onnx_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(tmp_path / "home")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"pfeddsh\[onnx\]"):
        export(tmp_path / "home", tmp_path / "out", onnx=True)
    assert not (tmp_path / "out").exists()


def draw(path: Path, seed: int, size: tuple[int, int] = (48, 40)) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_predictions_are_those_of_the_served_model_and_survive_bad_images(tmp_path: Path) -> None:
    record = site(tmp_path / "home", some_gates("hard"))
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    draw(folder / "a.png", 1, (32, 32))
    (folder / "b.jpg").write_bytes(b"not a picture")
    draw(folder / "deep" / "c.png", 2, (32, 32))
    found = list(predict(read_model(tmp_path / "home"), find_images([folder, tmp_path / "gone.png"])))
    assert [Path(entry.image).name for entry in found] == ["a.png", "b.jpg", "c.png", "gone.png"]
    assert "not a readable image" in found[1].error and "No such file" in found[3].error
    for entry in (found[0], found[2]):
        pixels = torch.from_numpy(np.asarray(Image.open(entry.image)).transpose(2, 0, 1).copy())
        mean, std = torch.tensor(FACTS["mean"]).view(3, 1, 1), torch.tensor([0.2, 0.3, 1e-3]).view(3, 1, 1)
        normal = ((pixels / 255 - mean) / std).unsqueeze(0)
        logits = LeNet(len(NAMES)).forward(record["theta"], normal, record["statistics"], record["gates"])
        best = logits.softmax(1)[0].max(0)
        assert entry.label == NAMES[int(best.indices)] and entry.probability == pytest.approx(
            float(best.values), rel=1e-5
        )


def test_classes_may_be_a_number(tmp_path: Path) -> None:
    site(tmp_path / "home", classes=5)
    assert read_model(tmp_path / "home").classes == ("0", "1", "2", "3", "4")


def test_what_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(UserError, match="no model yet"):
        export(home, tmp_path / "out")
    record = site(home)
    whole = (home / "model.safetensors").read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    for content in (b"", whole[:5000], bytes(flipped)):
        (home / "model.safetensors").write_bytes(content)
        with pytest.raises(UserError, match=r"damaged .*restore it"):
            export(home, tmp_path / "out")
    (home / "model.previous.safetensors").write_bytes(whole)
    with pytest.raises(UserError, match=r"last good one is .*previous"):
        read_model(home)
    wrong = [
        {"theta": record["theta"][:-1]},
        {"statistics": record["statistics"].double()},
        {"theta": torch.full_like(record["theta"], torch.nan)},
        {"gates": torch.ones(3)},
        {"gates": -torch.ones(GATES)},
    ]
    for change in wrong:
        write_record(home / "model.safetensors", Record(record.tensors | change, FACTS))
        with pytest.raises(UserError, match="damaged"):
            read_model(home)
    for facts in ({}, {"classes": 1}, {"classes": "x"}, {"mean": [1]}, {"mean": None}, {"image_size": 64}):
        write_record(home / "model.safetensors", Record(record.tensors, FACTS | facts if facts else {}))
        with pytest.raises(UserError, match="damaged"):
            read_model(home)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_images_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no images"):
        find_images([tmp_path])


def test_the_command_line_exports_and_predicts(tmp_path: Path) -> None:
    site(tmp_path / "home")
    picture, bad = draw(tmp_path / "picture.png", 3), tmp_path / "bad.png"
    bad.write_text("no picture")

    def said(*words: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        return result.exit_code, result.stdout, result.stderr

    (expected,) = predict(read_model(tmp_path / "home"), [picture])
    line = f"{picture}: {expected.label} ({expected.probability:.1%})\n"
    assert said("predict", tmp_path / "home", picture) == (0, line, "")
    code, output, errors = said("predict", tmp_path / "home", bad, picture)
    assert (code, output) == (1, line) and "bad.png: not a readable image" in errors
    code, output, _ = said("predict", tmp_path / "home", picture, bad, "--json")
    good, wrong = (json.loads(line) for line in output.splitlines())
    assert good == {"image": str(picture), "label": expected.label, "probability": expected.probability}
    assert code == 1 and wrong.keys() == {"image", "error"}
    code, output, _ = said("export", tmp_path / "home", "--out", tmp_path / "out")
    assert code == 0 and (tmp_path / "out" / "model.py").exists() and "weights.safetensors" in output


@pytest.mark.parametrize("kind", ["wide", "grey", "deep", "clear", "turned"])
def test_an_exported_model_sees_images_as_the_site_does(tmp_path: Path, kind: str) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (20, 47, 4), dtype=np.uint8)
    made = {
        "wide": Image.fromarray(pixels[..., :3]),
        "grey": Image.fromarray(pixels[..., 0]),
        "deep": Image.fromarray(pixels[..., 0].astype(np.uint16) * 250),
        "clear": Image.fromarray(pixels),
        "turned": Image.fromarray(pixels[..., :3]),
    }
    exif = Image.Exif()
    exif[0x0112] = 6 if kind == "turned" else 1
    made[kind].save(tmp_path / "image.png", exif=exif)
    (tmp_path / "model.json").write_text(json.dumps({"mean": [0.0] * 3, "std": [1.0] * 3, "shape": [3, 32, 32]}))
    expected = torch.from_numpy(decode((tmp_path / "image.png").read_bytes(), Fit((3, 32, 32)))[0].copy()) / 255
    assert torch.equal(exported.prepare(tmp_path / "image.png", tmp_path)[0], expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet8", (3, 16, 16)),
        ("resnet20", (1, 16, 16)),
        ("resnet18", (3, 32, 32)),
        ("convnet", (1, 28, 28)),
        ("mlp", (7, 1, 1)),
    ],
)
def test_other_networks_leave_with_their_own_source(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    """The exported folder needs nothing of this package, and the graph computes the same."""
    home, generator = tmp_path / "home", torch.Generator().manual_seed(7)
    home.mkdir()
    network = registry.create(name, len(NAMES), shape)
    theta, batch = network.init(generator), torch.randn(9, *shape, generator=generator)
    tensors = {"theta": theta, "statistics": network.calibrate(theta, batch)}
    channels = {"mean": [0.5] * shape[0], "std": [0.25] * shape[0]}
    facts = {"classes": list(NAMES), "model": name, "shape": list(shape), **channels}
    write_record(home / "model.safetensors", Record(tensors, facts))
    export(home, tmp_path / "out")
    for file in ("model.py", "network.py"):
        assert "pfeddsh" not in (tmp_path / "out" / file).read_text()
    served = network.forward(theta, batch, tensors["statistics"])
    with torch.no_grad():
        torch.testing.assert_close(imported(tmp_path / "out").load(tmp_path / "out")(batch), served)
    if name in ("resnet18", "resnet20"):
        return  # layers of the same kinds as those of resnet8, whose graph is computed below
    onnx = pytest.importorskip("onnx", reason="needs pfeddsh[onnx]")
    from onnx.reference import ReferenceEvaluator

    export(home, tmp_path / "out", onnx=True)
    graph = onnx.load(tmp_path / "out" / "model.onnx")
    (found,) = ReferenceEvaluator(graph).run(None, {"images": batch.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), served, rtol=1e-4, atol=1e-4)


def test_a_models_file_names_no_code(tmp_path: Path) -> None:
    site(tmp_path / "home", model="os:system", shape=[3, 32, 32])
    with pytest.raises(UserError, match="code by reference"):
        read_model(tmp_path / "home")
