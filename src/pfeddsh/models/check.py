"""Is this a network we can train? Everything is asked before anything is written, and answered in one line."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfeddsh.errors import UserError
from pfeddsh.models.base import Model, Shape
from pfeddsh.models.module import ModuleModel


def checked(spec: str, factory: Callable[..., Any], classes: int, shape: Shape | None) -> Model:
    """What the factory makes, as a `Model`."""

    def build(seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                return factory(classes=classes, **({} if shape is None else {"shape": shape}))
            except UserError:
                raise
            except Exception as error:
                how = f"classes={classes}, shape={shape}"
                raise _wrong(spec, f"called with {how} it fails: {type(error).__name__}: {error}") from error

    made = build(0)
    if not isinstance(made, nn.Module):
        if isinstance(made, Model):
            return made
        raise _wrong(spec, f"it gives a {type(made).__name__}, expected a torch.nn.Module")
    if shape is None:
        raise _wrong(spec, "it must be told the shape of images")
    if odd := [name for name, tensor in made.named_parameters() if tensor.dtype != torch.float32]:
        raise _wrong(spec, f"{odd[0]} is no float32 tensor")
    head = _head(spec, made, classes)
    tail = _try(spec, made, head, classes, shape)
    return ModuleModel(made, head, tail, shape, build)


def _head(spec: str, module: nn.Module, classes: int) -> str:
    """The last layer: a linear attribute `head`, or the last linear layer of the module tree."""
    linear = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    name = "head" if "head" in linear else next(reversed(linear), None)
    if name is None:
        raise _wrong(spec, "it has no linear layer; the last one, or the attribute `head`, must give the logits")
    if linear[name].out_features != classes:
        raise _wrong(spec, f"its last linear layer {name} gives {linear[name].out_features} numbers, not {classes}")
    if linear[name].bias is None:
        raise _wrong(spec, f"its last linear layer {name} has no bias, which a client's label prior is added to")
    return name


def _try(spec: str, module: nn.Module, head: str, classes: int, shape: Shape) -> str:
    """Run it on two images; returns the name of the dense tail, the largest part that only has linear layers.

    No statistics may depend on the tail, so it holds no normalisation, and what it gives must be what the module gives.
    """
    given: dict[str, Any] = {}
    calls: dict[str, int] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(part: nn.Module, inputs: Any, output: Any) -> None:
            given[name] = output
            calls[name] = calls.get(name, 0) + 1

        return hook

    hooks = [part.register_forward_hook(note(name)) for name, part in module.named_modules()]
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            logits = module.train()(images)
            first, second = (_seeded(module.eval(), images, seed) for seed in (1, 2))
        except Exception as error:
            what = f"{tuple(images.shape)}"
            raise _wrong(spec, f"it cannot read images of shape {what}: {type(error).__name__}: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (2, classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise _wrong(spec, f"of two images it makes {got}, expected logits of shape {(2, classes)}")
    if not torch.equal(first, second):
        raise _wrong(spec, "it draws at random in evaluation mode: what is served must say the same twice")
    if given[head] is not given[""] and not torch.equal(given[head], given[""]):
        raise _wrong(spec, f"what it gives is not what its last linear layer {head} gives: return plain logits")
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and calls.get(name) != 3:
            raise _wrong(spec, f"its normalisation {name} does not run once in each pass, so it has no statistics")
    within = [head.rsplit(".", cut)[0] if cut else head for cut in range(head.count(".") + 1)] + [""]
    return [name for name in dict.fromkeys(within) if name == head or _only_linear(module, name, given)][-1]


def _seeded(module: nn.Module, images: Tensor, seed: int) -> Any:
    torch.manual_seed(seed)
    return module(images)


def _only_linear(module: nn.Module, name: str, given: dict[str, Any]) -> bool:
    """Whether this part ends the network, and has weights in linear layers alone."""
    part = module.get_submodule(name)
    if not isinstance(given.get(name), Tensor) or not torch.equal(given[name], given[""]):
        return False
    own = [[*layer.parameters(recurse=False), *layer.buffers(recurse=False)] for layer in part.modules()]
    return all(isinstance(layer, nn.Linear) or not tensors for layer, tensors in zip(part.modules(), own, strict=True))


def _wrong(spec: str, why: str) -> UserError:
    return UserError(f"model = {spec}: {why}")
