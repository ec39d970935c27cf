"""Any classifier that is a `torch.nn.Module`, as a pure function of one flat vector.

The parameters are views of the vector (`torch.func.functional_call`), the last linear layer at its end. Batch
normalisation normalises by the batch in training and by the client's statistics in serving; its running averages are
never used. Its affine parameters are weights like all others. Gradients are autograd's, except that plain perceptrons
have a trainer of their own. Dropout acts in training alone
(`AutogradTrainer`): here, where statistics are taken and models served, everything but batch normalisation is in
evaluation mode.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from pfeddsh.models.autograd import AutogradTrainer, normalisations
from pfeddsh.models.base import Seen, Shape, Trainer, split_statistics, statistics_size
from pfeddsh.models.flat import Layout
from pfeddsh.models.moments import moments
from pfeddsh.models.perceptron import PerceptronTrainer, linear_layers

AT_ONCE = 2_000_000  # numbers of the input that pass through the network together when nothing is trained
NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


class ModuleModel:
    """A checked module (`check.py`); `build` makes it anew, with the initial weights that a seed gives."""

    channels = None

    def __init__(
        self, module: nn.Module, head: str, tail: str, shape: Shape, build: Callable[[int], nn.Module]
    ) -> None:
        self.shape, self._module, self._build, self._tail = shape, module.eval(), build, tail
        self._norms = _with_averages(module)
        for norm in self._norms.values():
            norm.track_running_stats = False  # in training, the batch alone
            norm.register_forward_pre_hook(self._note_statistics)
        self._seen: dict[nn.Module, tuple[Tensor, Tensor]] | None = None
        self._read: list[Tensor] | None = None
        self._device = torch.device("cpu")
        module.get_submodule(tail).register_forward_pre_hook(self._note_features)
        last = [f"{head}.weight", f"{head}.bias"]
        tensors = dict(module.named_parameters())
        within = [name for name in tensors if name.startswith(f"{tail}.") or not tail]
        order = [name for name in tensors if name not in within]
        order += [name for name in within if name not in last] + last
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tuple(tensors[name].shape) for name in order}
        self._layout = Layout(self.shapes)
        self._head, self._within = last, within
        self.classes = self.shapes[last[0]][0]
        self.norms = tuple(norm.num_features for norm in self._norms.values())

    @property
    def slices(self) -> dict[str, slice]:
        return self._layout.slices

    @property
    def size(self) -> int:
        return self._layout.size

    @property
    def body(self) -> slice:
        return slice(0, self.head.start)

    @property
    def head(self) -> slice:
        return slice(self.slices[self._head[0]].start, self.size)

    @property
    def dense(self) -> slice:
        return slice(min(self.slices[name].start for name in self._within), self.size)

    @property
    def bias(self) -> slice:
        return self.slices[self._head[1]]

    @cached_property
    def scales(self) -> tuple[slice, ...]:
        normal = [name for name, part in self._module.named_modules() if isinstance(part, NORMS)]
        return tuple(place for name, place in self.slices.items() if name.rpartition(".")[0] in normal)

    @cached_property
    def memory_format(self) -> torch.memory_format:
        """Convolutions are faster with channels last; a network without any would turn them back in every batch."""
        convolves = any(isinstance(part, nn.Conv2d) for part in self._module.modules())
        return torch.channels_last if convolves else torch.contiguous_format

    @cached_property
    def head_classes(self) -> Tensor:
        classes = torch.arange(self.classes)
        return torch.cat([classes.repeat_interleave(self.shapes[self._head[0]][1]), classes])

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        return self._layout.views(theta)

    def init(self, generator: torch.Generator) -> Tensor:
        """What the factory gives, under a seed that is drawn from the generator."""
        fresh = dict(self._build(int(torch.randint(2**62, (), generator=generator))).named_parameters())
        return torch.cat([fresh[name].detach().flatten() for name in self.shapes])

    def forward(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Tensor:
        """Many images are taken in parts, where that changes nothing and nothing is trained."""
        assert gates is None, "this network has no gates"
        parts = self._parts(images) if statistics is not None and seen is None and not torch.is_grad_enabled() else ()
        if len(parts) > 1:
            return torch.cat([self.call(self.views(theta), part, statistics) for part in parts])
        return self.call(self.views(theta), images, statistics, seen)

    def call(
        self, weights: dict[str, Tensor], images: Tensor, statistics: Tensor | None = None, seen: Seen | None = None
    ) -> Tensor:
        """The module with these weights; each batch normalises itself, unless there are statistics to serve with."""
        for norm in self._norms.values():
            norm.training = statistics is None
        if self._device != images.device:  # for buffers that are constants; weights are given
            self._module.to(images.device)
            self._device = images.device
        if statistics is not None:
            for name, (mean, variance) in zip(self._norms, split_statistics(self, statistics), strict=True):
                weights = {**weights, f"{name}.running_mean": mean, f"{name}.running_var": variance}
        self._seen = None if seen is None else {}
        logits: Tensor = functional_call(self._module, weights, (images,))
        if seen is not None and self._seen is not None:
            seen += [self._seen[norm] for norm in self._norms.values()]
        self._seen = None
        return logits

    def features(
        self,
        theta: Tensor,
        images: Tensor,
        statistics: Tensor | None = None,
        gates: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Tensor:
        self._read = []
        try:
            self.forward(theta, images, statistics, gates, seen)
            return torch.cat(self._read)
        finally:
            self._read = None

    def classify(self, theta: Tensor, features: Tensor, gates: Tensor | None = None) -> Tensor:
        weights, cut = self.views(theta), len(self._tail) + 1 if self._tail else 0
        tail = self._module.get_submodule(self._tail)
        logits: Tensor = functional_call(tail, {name[cut:]: weights[name] for name in self._within}, (features,))
        return logits

    @torch.no_grad()
    def calibrate(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        """Many images are taken in parts, each normalised by itself, whose statistics are then put together."""
        if not self.norms:
            return theta.new_zeros(0)
        parts, total = self._parts(images), theta.new_zeros(statistics_size(self))
        for part in parts:
            seen: Seen = []
            self.forward(theta, part, None, gates, seen)
            if len(parts) == 1:
                return torch.cat([number for pair in seen for number in pair])
            moments = [number for mean, variance in seen for number in (mean, variance + mean.square())]
            total.add_(torch.cat(moments), alpha=len(part) / len(images))
        for mean, variance in split_statistics(self, total):
            variance.sub_(mean.square()).clamp_min_(0)
        return total

    def build(self) -> nn.Module:
        """The module, once more."""
        return self._build(0)

    def trainer(self) -> Trainer:
        layers = linear_layers(self._module)
        return PerceptronTrainer(self, layers) if layers else AutogradTrainer(self)

    def module(self, theta: Tensor, statistics: Tensor, gates: Tensor | None = None) -> nn.Module:
        module = self.build()
        _with_averages(module)
        state = {name: view.clone() for name, view in self.views(theta).items()}
        for name, (mean, variance) in zip(self._norms, split_statistics(self, statistics), strict=True):
            state |= {f"{name}.running_mean": mean.clone(), f"{name}.running_var": variance.clone()}
        module.load_state_dict(state, strict=False)  # other buffers are constants of the factory
        return module.eval()

    def _parts(self, images: Tensor) -> tuple[Tensor, ...]:
        return images.tensor_split(-(-images.numel() // AT_ONCE)) if len(images) > 1 else (images,)

    def _note_statistics(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self._seen is not None:
            self._seen[norm] = moments(inputs[0])

    def _note_features(self, tail: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self._read is not None:
            self._read.append(inputs[0])


def _with_averages(module: nn.Module) -> dict[str, _BatchNorm]:
    """Its batch normalisations, each with a place for mean and variance to serve with."""
    norms = normalisations(module)
    for norm in norms.values():
        norm.register_buffer("running_mean", torch.zeros(norm.num_features))
        norm.register_buffer("running_var", torch.ones(norm.num_features))
    return norms
