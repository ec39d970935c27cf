"""A site's model for the world outside: a plain PyTorch module with its weights, and ONNX if wanted."""

import io
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from pfeddsh.errors import UserError
from pfeddsh.live.site import exported
from pfeddsh.live.site.model import SiteModel, read_model
from pfeddsh.messages import separate
from pfeddsh.models import registry
from pfeddsh.storage.files import replacing, write_text


def export(home: Path, out: Path, onnx: bool = False) -> list[Path]:
    """Write model.py, network.py, weights.safetensors, model.json (and model.onnx) into `out`; returns the files."""
    model = read_model(home)
    graph = _onnx_graph(model) if onnx else None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from error
    with replacing(out / "weights.safetensors") as temporary:
        safetensors.torch.save_file(separate(model.module().state_dict()), temporary)
    write_text(out / "model.json", json.dumps(describe(model), indent=1) + "\n")
    copies = {"model.py": Path(exported.__file__)}
    if (source := registry.source(model.spec)) is not None:
        copies["network.py"] = source
    for name, path in copies.items():
        with replacing(out / name) as temporary:
            shutil.copyfile(path, temporary)
    written = [out / name for name in (*copies, "weights.safetensors", "model.json")]
    if graph is not None:
        with replacing(out / "model.onnx") as temporary:
            temporary.write_bytes(graph)
        written.append(out / "model.onnx")
    return written


def describe(model: SiteModel) -> dict[str, Any]:
    """What someone who uses the model needs to know: (pixels / 255 - mean) / std, and the names of the classes."""
    origin: dict[str, Any] = {name: model.facts[name] for name in ("method", "step", "samples") if name in model.facts}
    shape = list(model.network.shape)
    about = {"classes": model.classes, "mean": model.mean, "std": model.std, "shape": shape, "model": model.spec}
    return {**about, "factory": registry.plain(model.spec), **origin}


def _onnx_graph(model: SiteModel) -> bytes:
    """The module as an ONNX graph for batches of any size, checked and compared with what the site is served."""
    try:
        import onnx
        from onnx import helper
        from onnx.reference import ReferenceEvaluator
    except ModuleNotFoundError:
        raise UserError("ONNX is an extra: pip install 'pfeddsh[onnx]'") from None
    sample = torch.randn(2, *model.network.shape, generator=torch.Generator().manual_seed(0))
    written, axes = io.BytesIO(), {"images": {0: "batch"}, "logits": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is called legacy
        torch.onnx.export(
            model.module(), (sample,), written, dynamo=False, opset_version=17,  # type: ignore[arg-type]
            input_names=["images"], output_names=["logits"], dynamic_axes=axes,
        )  # fmt: skip
    built = onnx.load_from_string(written.getvalue())
    helper.set_model_props(built, {name: json.dumps(value) for name, value in describe(model).items()})
    onnx.checker.check_model(built, full_check=True)
    expected = model.network.forward(model.theta, sample, model.statistics, model.gates)
    (found,) = ReferenceEvaluator(built).run(None, {"images": sample.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
    return bytes(built.SerializeToString())
