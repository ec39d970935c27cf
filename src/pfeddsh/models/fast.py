"""One training step of LeNet written out by hand: the arithmetic of `LeNet.forward` and its exact gradient.

What makes it fast is the order of the work. The four outputs under one pooling window are computed together, as four
groups of columns of one product: a 5x5 convolution is a 6x6 convolution of stride 2 with four times the channels, whose
matrices are wide enough to run at full speed. Normalisation without affine part is increasing in each channel, hence
commutes with the maximum: pooling comes first, and normalisation and ReLU act on a quarter of the elements.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from pfeddsh.models.lenet import CHANNELS, EPSILON, GATES, LeNet, split_gates

WINDOW = 6  # the pixels seen by 2x2 neighbouring outputs of a 5x5 convolution
CHANNELS_LAST = torch.channels_last


class _Convolution:
    """Weights of a 5x5 convolution spread to four 6x6 ones, in the order right-left, bottom-top, channel."""

    def __init__(self, outputs: int, inputs: int, like: Tensor) -> None:
        self.wide = like.new_zeros(4 * outputs, WINDOW, WINDOW, inputs)
        self.gradient = torch.empty_like(self.wide)
        self._spread = self._shifts(self.wide)
        self._collect = self._shifts(self.gradient)

    @staticmethod
    def _shifts(wide: Tensor) -> list[Tensor]:
        groups = wide.permute(0, 3, 1, 2).chunk(4)
        return [groups[2 * x + y][:, :, y : y + 5, x : x + 5] for x in (0, 1) for y in (0, 1)]

    def spread(self, weight: Tensor) -> None:
        for shifted in self._spread:
            shifted.copy_(weight)

    def collect(self, out: Tensor) -> None:
        a, b, c, d = self._collect
        torch.add(a, b, out=out).add_(c).add_(d)


class _Normalisation:
    """Max-pooling, normalisation by the batch, ReLU and gate of (rows, 4 groups x channels), and their gradient."""

    def __init__(self, rows: int, channels: int, like: Tensor) -> None:
        self.ones = like.new_ones(1, rows)
        self.half = like.new_empty(rows, 2 * channels)
        self.other = torch.empty_like(self.half)
        self.pooled = like.new_empty(rows, channels)
        self.active = torch.empty_like(self.pooled)  # after ReLU, before the gate
        self.product = torch.empty_like(self.pooled)
        self.channels = channels

    def forward(self, x: Tensor, gate: Tensor | None) -> Tensor:
        c = self.channels
        variance, self.mean = _moments(x, c)
        self.scale = variance.add_(EPSILON).rsqrt_()
        torch.maximum(x[:, : 2 * c], x[:, 2 * c :], out=self.half)
        torch.maximum(self.half[:, :c], self.half[:, c:], out=self.pooled)
        torch.sub(self.pooled, self.mean, out=self.active).mul_(self.scale).relu_()
        self.x, self.gate = x, gate
        return self.active if gate is None else torch.mul(self.active, gate, out=self.pooled)

    def backward(self, d_out: Tensor, d_gate: Tensor) -> Tensor:
        c, x = self.channels, self.x
        count = 4 * len(x)
        if self.gate is not None:
            torch.mm(self.ones, torch.mul(d_out, self.active, out=self.product), out=d_gate.view(1, c))
            d_out = d_out.mul_(self.gate)
        d = torch.ops.aten.threshold_backward(d_out, self.active, 0)
        # The maximum alone receives the gradient d, but mean and variance are those of all elements:
        # dx = scale * (d at the maximum - sum(d) / count - normalised x * sum(d * normalised x) / count).
        slope = torch.mm(self.ones, torch.mul(d, self.active, out=self.product)) * self.scale.square() / -count
        offset = torch.mm(self.ones, d) * self.scale / -count - self.mean * slope
        d.mul_(self.scale)
        # The way back through the maxima: the first of equal elements wins, as in PyTorch.
        half = self.half
        torch.maximum(x[:, : 2 * c], x[:, 2 * c :], out=half)
        second = torch.ops.aten.threshold_backward(d, half[:, c:] - half[:, :c], 0)
        self.other[:, c:] = second
        torch.sub(d, second, out=self.other[:, :c])
        torch.sub(x[:, 2 * c :], x[:, : 2 * c], out=half)
        right = torch.ops.aten.threshold_backward(self.other, half, 0)
        dx = torch.addcmul(offset.repeat(1, 4), x, slope.repeat(1, 4))
        dx[:, 2 * c :] += right
        dx[:, : 2 * c] += self.other.sub_(right)
        return dx


def _moments(x: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    wide = x.view(-1, 336 if channels == 6 else 320)
    means, variances = torch.batch_norm_update_stats(wide[None, :, None].permute(0, 3, 1, 2), None, None, 0.0)
    means, variances = means.view(-1, channels), variances.view(-1, channels)
    mean = means.mean(0)
    return means.sub_(mean).square_().add_(variances).mean(0), mean


class _Workspace:
    """Everything whose size depends on the batch."""

    def __init__(self, batch: int, like: Tensor) -> None:
        self.first = _Normalisation(batch * 14 * 14, 6, like)
        self.second = _Normalisation(batch * 5 * 5, 16, like)
        self.patches = like.new_empty(batch * 5 * 5, 6 * WINDOW * WINDOW)
        self.d_patches = torch.empty_like(self.patches)
        self.convolved = like.new_empty(batch * 5 * 5, 4 * 16)
        self.d_rows = like.new_empty(batch, 7, 5, 72)
        self.d_pooled = like.new_empty(batch * 14 * 14, 6)


class Trainer:
    """Forward and backward pass of one model; buffers are kept and reused, results do not depend on that."""

    def __init__(self, model: LeNet) -> None:
        self.model = model
        self._theta = torch.empty(0)

    def _bind(self, theta: Tensor) -> None:
        """Views are kept while the caller trains the same vector in place."""
        if theta.dtype != self._theta.dtype or len(self._theta) == 0:
            self.gradient = torch.zeros_like(theta)
            self.d_gates = theta.new_zeros(GATES)
            self._g = self.model.views(self.gradient)
            self._dg = self.d_gates.split(CHANNELS)
            self._conv1 = _Convolution(6, 3, theta)
            self._conv2 = _Convolution(16, 6, theta)
            self._workspaces: dict[int, _Workspace] = {}
        self._theta = theta
        self._p = self.model.views(theta)

    @torch.no_grad()
    def forward(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        """Logits in training mode. The biases of the convolutions are left out: the normalisation removes them."""
        if theta is not self._theta:
            self._bind(theta)
        p, n = self._p, len(images)
        if n not in self._workspaces:
            self._workspaces[n] = _Workspace(n, theta)
        self._w = w = self._workspaces[n]
        self._gates = gate = split_gates(gates)
        self._images = images = images.contiguous(memory_format=CHANNELS_LAST)
        self._conv1.spread(p["conv1.weight"])
        self._conv2.spread(p["conv2.weight"])
        x = torch.conv2d(images, self._conv1.wide.permute(0, 3, 1, 2), stride=2)
        x = w.first.forward(x.permute(0, 2, 3, 1).reshape(-1, 24), gate[0])
        w.patches.view(n, 5, 5, 6, 36).copy_(x.as_strided((n, 5, 5, 6, 36), (1176, 168, 12, 84, 1)))
        x = torch.mm(w.patches, self._conv2.wide.view(64, -1).t(), out=w.convolved)
        x = w.second.forward(x, gate[1])
        self._x0 = x = x.view(n, 25, 16).transpose(1, 2).reshape(n, 400)
        self._a1 = x = torch.addmm(p["fc1.bias"], x, p["fc1.weight"].t()).relu_()
        self._x1 = x = x if gate[2] is None else x * gate[2]
        self._a2 = x = torch.addmm(p["fc2.bias"], x, p["fc2.weight"].t()).relu_()
        self._x2 = x = x if gate[3] is None else x * gate[3]
        return torch.addmm(p["fc3.bias"], x, p["fc3.weight"].t())

    def _dense(self, name: str, d: Tensor, x: Tensor) -> Tensor:
        torch.mm(d.t(), x, out=self._g[f"{name}.weight"])
        torch.sum(d, 0, out=self._g[f"{name}.bias"])
        return torch.mm(d, self._p[f"{name}.weight"])

    def _relu(self, d: Tensor, active: Tensor, gate: Tensor | None, d_gate: Tensor) -> Tensor:
        if gate is not None:
            torch.sum(d * active, 0, out=d_gate)
            d *= gate
        return torch.ops.aten.threshold_backward(d, active, 0)

    @torch.no_grad()
    def backward(self, d_logits: Tensor) -> Tensor:
        """The flat gradient, in a buffer that the next call overwrites; that of the gates is left in `d_gates`.

        The gradient of the convolutions' biases is zero: the normalisation removes any constant.
        """
        w, g, n = self._w, self._g, len(d_logits)
        d = self._dense("fc3", d_logits, self._x2)
        d = self._dense("fc2", self._relu(d, self._a2, self._gates[3], self._dg[3]), self._x1)
        d = self._dense("fc1", self._relu(d, self._a1, self._gates[2], self._dg[2]), self._x0)
        d = d.view(n, 16, 25).transpose(1, 2).reshape(-1, 16)
        d = w.second.backward(d, self._dg[1])
        torch.mm(d.t(), w.patches, out=self._conv2.gradient.view(64, -1))
        self._conv2.collect(g["conv2.weight"])
        torch.mm(d, self._conv2.wide.view(64, -1), out=w.d_patches)
        d = self._fold(w, n)
        d = w.first.backward(d, self._dg[0])
        _, d_weight, _ = torch.ops.aten.convolution_backward(
            d.view(n, 14, 14, 24).permute(0, 3, 1, 2), self._images, self._conv1.wide.permute(0, 3, 1, 2), None,
            [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False],
        )
        self._conv1.gradient.copy_(d_weight.permute(0, 2, 3, 1))
        self._conv1.collect(g["conv1.weight"])
        return self.gradient

    def _fold(self, w: _Workspace, n: int) -> Tensor:
        """Sum of the overlapping patches: first over the 3 patches in a column, then over those in a row."""
        patches = w.d_patches.view(n, 5, 5, 3, 72)
        rows = w.d_rows.zero_()
        for i in range(3):
            rows[:, i : i + 5].add_(patches[:, :, :, i])
        pixels = w.d_pooled.zero_().view(n * 7, 2, 7, 12)
        parts = rows.view(n * 7, 5, 2, 3, 12).transpose(1, 2)
        for i in range(3):
            pixels[:, :, i : i + 5].add_(parts[:, :, :, i])
        return w.d_pooled


@torch.no_grad()
def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss and its gradient with respect to the logits."""
    d = torch.log_softmax(logits, 1)
    loss = F.nll_loss(d, labels)
    labels = labels.unsqueeze(1)
    d.exp_().scatter_add_(1, labels, d.new_full((1, 1), -1.0).expand(labels.shape)).div_(len(labels))
    return loss, d


@torch.no_grad()
def sgd_epoch(
    trainer: Trainer,
    theta: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    batches: Iterable[Tensor],
    lr: float,
    momentum: float,
    gates: Tensor | None = None,
    gradient_gate: Tensor | None = None,
    part: slice | None = None,
) -> float:
    """Train `theta` in place, with momentum from rest, and return the mean loss over the batches.

    `gradient_gate` multiplies the gradient, `part` restricts the update to a slice. Batches of one are skipped: there
    is nothing to normalise by.
    """
    part = part or slice(None)
    velocity = torch.zeros_like(theta[part])
    target = theta[part]
    losses = []
    for batch in batches:
        if len(batch) < 2:
            continue
        loss, d = cross_entropy(trainer.forward(theta, images[batch], gates), labels[batch])
        gradient = trainer.backward(d)
        if gradient_gate is not None:
            gradient *= gradient_gate
        velocity.mul_(momentum).add_(gradient[part])
        target.add_(velocity, alpha=-lr)
        losses.append(loss)
    return float(torch.stack(losses).mean()) if losses else 0.0
