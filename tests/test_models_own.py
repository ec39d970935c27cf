"""A network of one's own: how it is found, what is refused, and that nothing is written then."""

import math
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same_bits, final_tensors, tiny
from safetensors.torch import save_file
from torch import Tensor, nn

from pfeddsh.errors import UserError
from pfeddsh.federation.run import resume, run
from pfeddsh.methods.task import Task
from pfeddsh.models import registry
from pfeddsh.models.base import split_statistics

SHAPE = (3, 32, 32)


def net(classes: int, shape: tuple[int, int, int], **more: Any) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


class Late(nn.Module):
    """The head is not the last of the tree, a constant is a buffer, one layer is frozen, one parameter idle."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.head = nn.Linear(8, classes)
        self.norm = nn.BatchNorm2d(shape[0], track_running_stats=False)
        self.conv = nn.Conv2d(shape[0], 8, 3, stride=4)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.idle = nn.Parameter(torch.ones(2))
        self.register_buffer("constant", torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(self.conv(self.norm(x)).mean((2, 3)) * self.constant).relu())


def lists(classes: int, shape: tuple[int, int, int]) -> list[int]:
    return [1]


def many(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return net(classes + 1, shape)


def other_input(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, classes))


def softmax(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(net(classes, shape), nn.Softmax(1))


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def random(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(Noise(), net(classes, shape))


def dropout(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    first = nn.Sequential(nn.Conv2d(shape[0], 6, 3), nn.BatchNorm2d(6), nn.Dropout2d(0.3), nn.Flatten())
    dense = nn.Linear(6 * (shape[1] - 2) * (shape[2] - 2), 20)
    return nn.Sequential(first, nn.Sequential(dense, nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, classes)))


def no_bias(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes, bias=False))


def convolutional(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, classes, 32), nn.Flatten())


def twice(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    norm = nn.BatchNorm2d(shape[0])
    return nn.Sequential(norm, norm, net(classes, shape))


def broken(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    raise RuntimeError("no luck")


def double(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    return net(classes, shape).double()


WRONG = {
    lists: "gives a list, expected a torch.nn.Module",
    many: r"gives 11 numbers, not 10",
    other_input: r"cannot read images of shape \(2, 1, 8, 8\)",
    softmax: "return plain logits",
    random: "draws at random in evaluation mode",
    no_bias: "no bias",
    convolutional: "no linear layer",
    twice: "does not run once",
    broken: r"it fails: RuntimeError: no luck",
    double: "no float32",
}


@pytest.mark.parametrize("factory", list(WRONG), ids=lambda factory: factory.__name__)
def test_a_bad_factory_is_refused_before_anything_is_written(factory: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=WRONG[factory]) as refusal:
        run(tiny("fedavg", model=factory), tmp_path / "run")
    assert "\n" not in str(refusal.value).partition(": ")[0] and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("spec", "why"),
    [("resnet", "did you mean"), ("no.such:thing", "there is no module no"),
     ("pfeddsh.rng:nothing", "unknown name 'nothing'"), ("pfeddsh.rng:np", "is a module"),
     ("nowhere.py:net", "no file"), ("my.net", "package.module:factory")],
)  # fmt: skip
def test_a_factory_that_cannot_be_found(spec: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        registry.create(spec, 10, SHAPE)


def test_lambdas_have_no_name_others_could_find_them_by() -> None:
    with pytest.raises(UserError, match="define it at the top of a module"):
        tiny("fedavg", model=lambda classes, shape: net(classes, shape))


@pytest.mark.parametrize("made", [partial(net, width=3), net(10, SHAPE)], ids=["partial", "instance"])
def test_what_has_no_name_is_explained(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no name .* def network\(classes, shape\): return"):
        tiny("fedavg", model=made)
    monkeypatch.setattr(sys.modules[__name__], "made", made, raising=False)
    with pytest.raises(UserError, match=r"expected a function or class .* def network\(classes, shape\): return"):
        registry.find(f"{__name__}:made")


@pytest.mark.parametrize("method", ["fedavg", "pfeddsh"])
def test_dropout_draws_the_same_in_every_engine(method: str, tmp_path: Path) -> None:
    few = {"model": dropout, "rounds_first": 2, "rounds_later": 1, "workers": 1}
    torch.manual_seed(1)
    serial = run(tiny(method, **few), tmp_path / "serial")
    torch.manual_seed(2)
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        run(tiny(method, **few), tmp_path / "stopped", [Interrupt()])
    assert torch.equal(torch.get_rng_state(), state), "the user's own generator is left alone"
    assert resume(tmp_path / "stopped")["acc"] == serial["acc"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))  # controls of its own
        pool = run(tiny(method, **few, engine="pool"), tmp_path / "pool")
    assert pool["acc"] == serial["acc"] and pool["local"] == serial["local"]
    for other in ("pool", "stopped"):
        assert_same_bits(final_tensors(tmp_path / "serial"), final_tensors(tmp_path / other))


class Interrupt:
    """Ctrl-C in the second round."""

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "round" and facts["round"] == 1:
            raise KeyboardInterrupt


def test_dropout_acts_in_training_alone() -> None:
    model = registry.create(f"{__name__}:dropout", 10, (1, 8, 8))
    theta, images = model.init(torch.Generator().manual_seed(0)), torch.randn(40, 1, 8, 8)
    trainer, forward = model.trainer(), lambda: model.forward(theta, images)
    assert not torch.equal(trainer.forward(theta, images), trainer.forward(theta, images))
    assert torch.equal(forward(), forward())
    assert torch.equal(model.calibrate(theta, images), model.calibrate(theta, images))
    features = model.features(theta, images)
    assert torch.equal(model.classify(theta, features), model.classify(theta, features))
    torch.testing.assert_close(model.classify(theta, features), forward())


def test_what_others_send_is_a_name_or_allowed() -> None:
    registry.create("resnet8", 10, SHAPE, allowed=())
    registry.create(f"{__name__}:net", 10, SHAPE, allowed=[f"{__name__}:net"])
    with pytest.raises(UserError, match="code by reference; if you trust it, join with --allow os:system"):
        registry.create("os:system", 10, SHAPE, allowed=[f"{__name__}:net"])


def test_a_module_with_oddities() -> None:
    model = registry.create(f"{__name__}:Late", 10, SHAPE)
    assert model.norms == (3,) and list(model.shapes)[-2:] == ["head.weight", "head.bias"]
    theta = model.init(torch.Generator().manual_seed(0))
    images = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(1))
    trainer = model.trainer()
    trainer.forward(theta, images)
    gradient = trainer.backward(torch.randn(6, 10))
    assert not gradient[model.slices["frozen.weight"]].any() and gradient[model.slices["conv.weight"]].any()
    assert not gradient[model.slices["idle"]].any()
    statistics = model.calibrate(theta, images)
    torch.testing.assert_close(split_statistics(model, statistics)[0][0], images.mean((0, 2, 3)))
    with torch.no_grad():
        torch.testing.assert_close(model.module(theta, statistics)(images), model.forward(theta, images, statistics))
    again = registry.create(f"{__name__}:Late", 10, SHAPE)
    assert torch.equal(again.forward(theta, images, statistics), model.forward(theta, images, statistics))


def test_a_factory_in_a_file_runs_on_the_pool(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        from torch import nn
        def mine(classes, shape):
            return nn.Sequential(nn.Conv2d(shape[0], 4, 5, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                                 nn.Linear(4, classes))
        """)
    )
    spec, small = f"{tmp_path / 'mine.py'}:mine", {"rounds_first": 2, "rounds_later": 1}
    serial, pool = (
        run(tiny("fedper", model=spec, engine=engine, **small), tmp_path / engine) for engine in ("serial", "pool")
    )
    assert serial["acc"] == pool["acc"] and serial["protocol"]["model"] == spec


def test_what_a_script_defines_is_found_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(net, "__module__", "__main__")
    monkeypatch.setattr(main, "__file__", "/somewhere/script.py", raising=False)
    assert tiny("fedavg", model=net).model == "/somewhere/script.py:net"
    monkeypatch.delattr(main, "__file__")
    assert tiny("fedavg", model=net, engine="serial").model == "__main__:net"
    with pytest.raises(UserError, match="which other processes cannot import"):
        tiny("fedavg", model=net, engine="pool")


def test_pretrained_weights(tmp_path: Path) -> None:
    fresh = Task.create(10, 0, "resnet8", SHAPE)
    other = fresh.model.init(torch.Generator().manual_seed(5))
    state = fresh.model.module(other, torch.ones(672)).state_dict()
    save_file(state, tmp_path / "all.safetensors")
    assert torch.equal(Task.create(10, 0, "resnet8", SHAPE, tmp_path / "all.safetensors").theta0, other)
    with pytest.warns(UserWarning, match="last layer begins anew"):
        task = Task.create(7, 0, "resnet8", SHAPE, tmp_path / "all.safetensors")
    assert torch.equal(task.theta0[task.model.body], other[fresh.model.body])
    save_file({k: v for k, v in state.items() if "head" not in k}, tmp_path / "body.safetensors")
    with pytest.warns(UserWarning, match=r"head\.bias, head\.weight"):
        task = Task.create(10, 0, "resnet8", SHAPE, tmp_path / "body.safetensors")
    assert torch.equal(task.theta0, torch.cat([other[fresh.model.body], fresh.theta0[fresh.model.head]]))
    name = "blocks.0.conv1.weight"
    bad = {
        "missing": {k: v for k, v in state.items() if k != name},
        "has no extra": {**state, "extra": torch.zeros(1)},
        "has shape": {**state, name: state[name][:1].clone()},
        "finite": {**state, name: state[name] * torch.nan},
    }
    for why, content in bad.items():
        save_file(content, tmp_path / "bad.safetensors")
        with pytest.raises(UserError, match=why):
            Task.create(10, 0, "resnet8", SHAPE, tmp_path / "bad.safetensors")
    (tmp_path / "bad.safetensors").write_text("nothing")
    for path in ("bad.safetensors", "none.safetensors"):
        with pytest.raises(UserError, match="init"):
            run(tiny("fedavg", model="resnet8", init=tmp_path / path), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_network_or_another_start_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    found = [registry.identity(*which) for which in (("mlp", None), ("mlp", tmp_path / "a"), ("mlp", tmp_path / "b"),
             ("lenet", None), ("lenet", tmp_path / "a"), (f"{__name__}:net", None))]  # fmt: skip
    assert len(set(found)) == 6 and found[3] is None
