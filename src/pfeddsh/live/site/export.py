"""A site's model for the world outside: a plain PyTorch module with its weights, and ONNX if wanted."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from pfeddsh.errors import UserError
from pfeddsh.live.site import exported
from pfeddsh.live.site.model import SiteModel, read_model
from pfeddsh.models.lenet import split_gates, split_statistics
from pfeddsh.storage.files import replacing, write_text

LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")


def export(home: Path, out: Path, onnx: bool = False) -> list[Path]:
    """Write model.py, weights.safetensors and model.json (and model.onnx) into `out`; returns what was written."""
    model = read_model(home)
    graph = _onnx_graph(model) if onnx else None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from error
    with replacing(out / "weights.safetensors") as temporary:
        safetensors.torch.save_file(state_dict(model), temporary)
    write_text(out / "model.json", json.dumps(describe(model), indent=1) + "\n")
    with replacing(out / "model.py") as temporary:
        shutil.copyfile(exported.__file__, temporary)
    written = [out / name for name in ("model.py", "weights.safetensors", "model.json")]
    if graph is not None:
        with replacing(out / "model.onnx") as temporary:
            temporary.write_bytes(graph)
        written.append(out / "model.onnx")
    return written


def describe(model: SiteModel) -> dict[str, Any]:
    """What someone who uses the model needs to know: (pixels / 255 - mean) / std, and the names of the classes."""
    origin: dict[str, Any] = {name: model.facts[name] for name in ("method", "step", "samples") if name in model.facts}
    return {"classes": model.classes, "mean": model.mean, "std": model.std, "image_size": 32, "channels": 3, **origin}


def state_dict(model: SiteModel) -> dict[str, Tensor]:
    """The weights under a module's ordinary names.

    A gate multiplies a channel after its ReLU. Being no less than zero it passes through pooling, so it is the same to
    multiply the weights that read the channel: the module needs no gates. (A gate of 0 or 1 changes no bit by this.)
    """
    weights = {name: view.clone() for name, view in model.network.views(model.theta).items()}
    for reader, gate in zip(LAYERS[1:], split_gates(model.gates), strict=True):
        if gate is not None:
            name = f"{reader}.weight"
            inputs = gate.repeat_interleave(25) if reader == "fc1" else gate  # fc1 reads 5x5 places of each channel
            shape = (1, -1, 1, 1) if weights[name].dim() == 4 else (1, -1)
            weights[name] = weights[name] * inputs.view(shape)
    for number, (mean, variance) in enumerate(split_statistics(model.statistics), start=1):
        assert mean is not None and variance is not None
        weights[f"norm{number}.running_mean"], weights[f"norm{number}.running_var"] = mean.clone(), variance.clone()
        weights[f"norm{number}.num_batches_tracked"] = torch.tensor(0)
    return weights


def _onnx_graph(model: SiteModel) -> bytes:
    """The same network as an ONNX graph, built from its twelve operators, checked and compared with the module."""
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
        from onnx.reference import ReferenceEvaluator
    except ModuleNotFoundError:
        raise UserError("ONNX is an extra: pip install 'pfeddsh[onnx]'") from None
    weights = {name: value.numpy() for name, value in state_dict(model).items() if "tracked" not in name}
    nodes: list[Any] = []
    flow = "images"

    def then(operator: str, *inputs: str, **attributes: Any) -> None:
        nonlocal flow
        result = "logits" if inputs[:1] == ("fc3.weight",) else f"{operator.lower()}{len(nodes)}"
        nodes.append(helper.make_node(operator, [flow, *inputs], [result], **attributes))
        flow = result

    for number, channels in ((1, 6), (2, 16)):
        weights[f"norm{number}.scale"] = np.ones(channels, np.float32)
        weights[f"norm{number}.shift"] = np.zeros(channels, np.float32)
        then("Conv", f"conv{number}.weight", f"conv{number}.bias")
        then(
            "BatchNormalization",
            *(f"norm{number}.{part}" for part in ("scale", "shift", "running_mean", "running_var")),
        )
        then("Relu")
        then("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    then("Flatten")
    for layer in LAYERS[2:]:
        then("Gemm", f"{layer}.weight", f"{layer}.bias", transB=1)
        if layer != "fc3":
            then("Relu")
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 32, 32])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(model.classes)])
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "lenet", [images], [logits], constants)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(built, {name: json.dumps(value) for name, value in describe(model).items()})
    onnx.checker.check_model(built, full_check=True)

    sample = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = model.network.forward(model.theta, sample, model.statistics, model.gates)
    (found,) = ReferenceEvaluator(built).run(None, {"images": sample.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
    return bytes(built.SerializeToString())
