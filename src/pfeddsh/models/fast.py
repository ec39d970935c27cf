"""One training step of LeNet written out by hand: the arithmetic of `LeNet.forward` and its exact gradient.

What makes it fast is the order of the work. The four outputs under one pooling window are computed together: a 5x5
convolution followed by 2x2 pooling is a 6x6 convolution of stride 2 with four times the channels, whose matrices are
wide enough to run at full speed, followed by a maximum over four groups of columns. Normalisation without affine part
increases in each channel, hence commutes with the maximum: it acts, like ReLU, on a quarter of the elements.
"""

import torch
from torch import Tensor

from pfeddsh.models.base import Model
from pfeddsh.models.flat import Layout

EPSILON = 1e-5  # of the normalisation
CHANNELS = (6, 16, 120, 84)  # of LeNet's layers, each with a gate
GATES = sum(CHANNELS)

_ops = torch.ops.aten
_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T by oneDNN, which uses the widest vectors of any processor; MKL does not on those of AMD."""
    if _onednn is None or x.dtype != torch.float32 or x.device.type != "cpu":
        return torch.mm(x, weight.t())
    result: Tensor = _onednn(x, weight, None, "none", [], "")
    return result


def split_gates(gates: Tensor | None) -> tuple[Tensor | None, ...]:
    return (None,) * 4 if gates is None else gates.split(CHANNELS)


class _Convolution:
    """The weight of a 5x5 convolution spread to four 6x6 ones: (4 groups x outputs, 6, 6, inputs), and views of it.

    The groups are left-top, left-bottom, right-top, right-bottom; the rest of the four windows stays zero.
    """

    def __init__(self, outputs: int, inputs: int, like: Tensor) -> None:
        wide = like.new_zeros(4 * outputs, 6, 6, inputs)
        self.gradient = torch.empty_like(wide)
        self.kernel, self.rows = wide.permute(0, 3, 1, 2), wide.view(4 * outputs, -1)
        self.columns, self.d_rows = self.rows.t(), self.gradient.view(4 * outputs, -1)
        self._weights = self._windows(wide)
        self._gradients = [group for side in self._windows(self.gradient) for group in side]

    @staticmethod
    def _windows(wide: Tensor) -> Tensor:
        """(right, bottom, outputs, inputs, 5, 5): a step to the right in the groups is one in the window as well."""
        outputs, inputs = len(wide) // 4, wide.shape[3]
        output, row, column, _ = wide.stride()
        steps = (2 * outputs * output + column, outputs * output + row, output, 1, row, column)
        return wide.as_strided((2, 2, outputs, inputs, 5, 5), steps)

    def spread(self, weight: Tensor) -> None:
        self._weights.copy_(weight)

    def collect(self, out: Tensor) -> None:
        a, b, c, d = self._gradients
        torch.add(a, b, out=out).add_(c).add_(d)


class _Normalisation:
    """Pooling, normalisation by the batch, ReLU and gate of (positions, 4 groups x channels), and the way back.

    Per-channel factors are repeated to the width of a row of the picture, so that vector operations see long runs.
    """

    def __init__(self, batch: int, side: int, channels: int, like: Tensor) -> None:
        positions, width = batch * side * side, side * channels
        self.channels, self.width = channels, width
        self.shares = like.new_full((1, positions), -1 / (4 * positions))
        self.average = like.new_full((1, 4 * side), 1 / (4 * side))
        self.epsilon = like.new_full((1, channels), EPSILON)
        self.tile = torch.eye(channels, out=like.new_empty(channels, channels)).repeat(1, 4 * side)
        self.row = self.tile[:, :width]
        factors = like.new_empty(4, channels)
        self.scale, self.shift, self.slope, self.offset = factors.chunk(4)
        self.to_normal, self.to_correct = factors.chunk(2)
        self.scales, self.shifts = self.normal = like.new_empty(2, width)
        self.slopes, self.offsets = self.correction = like.new_empty(2, 4 * width)
        self.pair = like.new_empty(positions, 2 * channels)
        self.top, self.bottom = self.pair.chunk(2, 1)
        self.pooled = like.new_empty(positions, channels)
        self.active = torch.empty_like(self.pooled)  # after ReLU, before the gate
        self.pooled_rows, self.active_rows = self.pooled.view(-1, width), self.active.view(-1, width)
        self.gated = torch.empty_like(self.pooled)
        self.d_pair, self.step = torch.empty_like(self.pair), torch.empty_like(self.pair)
        self.d_x = like.new_empty(positions, 4 * channels)
        self.d_left, self.d_right = self.d_x.chunk(2, 1)
        self.d_rows = self.d_x.view(-1, 4 * width)

    def forward(self, x: Tensor, gate: Tensor | None) -> Tensor:
        # Moments of each column of a row of the picture, then over columns: short sums are fast and more accurate.
        self.x_rows = x.view(-1, 4 * self.width)
        means, variances = torch.batch_norm_update_stats(self.x_rows, None, None, 0.0)
        means, variances = means.view(-1, self.channels), variances.view(-1, self.channels)
        self.mean = torch.mm(self.average, means)
        means.sub_(self.mean)
        variance = torch.addmm(self.epsilon, self.average, variances.addcmul_(means, means))
        torch.rsqrt(variance, out=self.scale)
        torch.mul(self.mean, self.scale, out=self.shift)
        torch.mm(self.to_normal, self.row, out=self.normal)
        self.gate = gate
        self.left, self.right = x.chunk(2, 1)
        torch.maximum(self.left, self.right, out=self.pair)
        torch.maximum(self.top, self.bottom, out=self.pooled)
        torch.mul(self.pooled_rows, self.scales, out=self.active_rows).sub_(self.shifts).relu_()
        return self.active if gate is None else torch.mul(self.active, gate, out=self.gated)

    def backward(self, d: Tensor, d_gate: Tensor) -> Tensor:
        d = _gated_relu(d, self.active, self.gate, d_gate)
        # d reaches the maximum alone, but mean and variance are those of all x. With z = (x - mean) scale,
        # d_x = scale (d - sum(d) / count - z sum(d z) / count); the second sum needs z only where d is not zero,
        # which is where z equals the activation. Collected: d_x = scale d + offset + slope x.
        torch.mm(self.shares, torch.mul(d, self.active, out=self.gated), out=self.slope)
        torch.mm(self.shares, d, out=self.offset)
        self.offset.addcmul_(self.shift, self.slope, value=-1)
        self.to_correct.mul_(self.scale)
        self.slope.mul_(self.scale)
        torch.mm(self.to_correct, self.tile, out=self.correction)
        torch.addcmul(self.offsets, self.x_rows, self.slopes, out=self.d_rows)
        d.view(-1, self.width).mul_(self.scales)
        # Back through the two maxima; of equal elements the first wins, as in PyTorch.
        d_bottom = _ops.threshold_backward(d, torch.sub(self.bottom, self.top, out=self.pooled), 0)
        torch.cat((d.sub_(d_bottom), d_bottom), 1, out=self.d_pair)
        d_right = _ops.threshold_backward(self.d_pair, torch.sub(self.right, self.left, out=self.step), 0)
        self.d_right.add_(d_right)
        self.d_left.add_(self.d_pair.sub_(d_right))
        return self.d_x


def _gated_relu(d: Tensor, active: Tensor, gate: Tensor | None, d_gate: Tensor) -> Tensor:
    """The way back through gate and ReLU, whose output (before the gate) is `active`."""
    if gate is not None:
        torch.sum(d * active, 0, out=d_gate)
        d = d * gate
    result: Tensor = _ops.threshold_backward(d, active, 0)
    return result


class _Workspace:
    """The buffers whose size depends on the batch, and how patches of 6x6 pixels at distance 2 lie in them."""

    def __init__(self, batch: int, like: Tensor) -> None:
        self.first = _Normalisation(batch, 14, 6, like)
        self.second = _Normalisation(batch, 5, 16, like)
        self.patches = like.new_empty(batch * 5 * 5, 6 * 6 * 6)
        self.d_rows = like.new_empty(batch, 7, 5, 72)
        self.d_pixels = like.new_empty(batch * 14 * 14, 6)
        rows, pixels = self.d_rows.view(-1, 5, 2, 3, 12).transpose(1, 2), self.d_pixels.view(-1, 2, 7, 12)
        self._rows = [self.d_rows[:, i : i + 5] for i in range(3)]
        self._columns = [(pixels[:, :, i : i + 5], rows[:, :, :, i]) for i in range(3)]

    def unfold(self, x: Tensor) -> Tensor:
        """The patches of 14x14 pixels with 6 channels each."""
        patches = self.patches.view(-1, 5, 5, 6, 36)
        patches.copy_(x.as_strided(patches.shape, (14 * 84, 2 * 84, 2 * 6, 84, 1)))
        return self.patches

    def fold(self, d_patches: Tensor) -> Tensor:
        """The sum of the overlapping gradients of patches: first over three rows of patches, then columns."""
        self.d_rows.zero_()
        for rows, part in zip(self._rows, d_patches.view(-1, 5, 5, 3, 72).unbind(3), strict=True):
            rows.add_(part)
        self.d_pixels.zero_()
        for pixels, part in self._columns:
            pixels.add_(part)
        return self.d_pixels


class LeNetTrainer:
    """Forward and backward pass of one model in the precision of its vector.

    Buffers of the largest batch and of the last other one are kept and reused: a client's last batch has a size of
    its own. Every call overwrites what it reads, so results do not depend on earlier work.
    Gates must not be negative (the maximum commutes with them); at zero their gradient is the one from the right.
    """

    def __init__(self, model: Model) -> None:
        self.model, self._layout = model, Layout(model.shapes)
        self._theta = torch.empty(0)  # the vector last trained, whose views are kept

    def _bind(self, theta: Tensor) -> None:
        if not len(self._theta) or (theta.dtype, theta.device) != (self._theta.dtype, self._theta.device):
            self.gradient = torch.zeros_like(theta)
            self.d_gates = theta.new_zeros(GATES)
            self._g = self._layout.views(self.gradient)
            self._dg = self.d_gates.split_with_sizes(CHANNELS)
            self._conv1 = _Convolution(6, 3, theta)
            self._conv2 = _Convolution(16, 6, theta)
            self._workspaces: dict[int, _Workspace] = {}
        self._theta = theta
        self._p = self._layout.views(theta)

    @torch.no_grad()
    def forward(self, theta: Tensor, images: Tensor, gates: Tensor | None = None) -> Tensor:
        """Logits in training mode. The biases of the convolutions are left out: the normalisation removes them."""
        if theta is not self._theta:
            self._bind(theta)
        p, n = self._p, len(images)
        if n not in self._workspaces:
            largest = max(self._workspaces, default=n)
            self._workspaces = {size: w for size, w in self._workspaces.items() if size == largest}
            self._workspaces[n] = _Workspace(n, theta)
        self._w = w = self._workspaces[n]
        self._gates = gate = split_gates(gates)
        self._images = images = images.contiguous(memory_format=torch.channels_last)
        self._conv1.spread(p["conv1.weight"])
        self._conv2.spread(p["conv2.weight"])
        x = torch.conv2d(images, self._conv1.kernel, stride=2)
        x = w.first.forward(x.permute(0, 2, 3, 1).reshape(-1, 24), gate[0])
        x = _product(w.unfold(x), self._conv2.rows)
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

    @torch.no_grad()
    def backward(self, d_logits: Tensor, dense_only: bool = False) -> Tensor:
        """The flat gradient, in a buffer that the next call overwrites; that of the gates is left in `d_gates`.

        The gradient of the convolutions' biases is zero: the normalisation removes any constant. `dense_only` saves
        the work below the fully connected layers and leaves the rest of the gradient undefined.
        """
        w, g, n = self._w, self._g, len(d_logits)
        d = self._dense("fc3", d_logits, self._x2)
        d = self._dense("fc2", _gated_relu(d, self._a2, self._gates[3], self._dg[3]), self._x1)
        d = self._dense("fc1", _gated_relu(d, self._a1, self._gates[2], self._dg[2]), self._x0)
        if dense_only:
            return self.gradient
        d = d.view(n, 16, 25).transpose(1, 2).reshape(-1, 16)
        d = w.second.backward(d, self._dg[1])
        self._conv2.d_rows.copy_(_product(d.t(), w.patches.t()))
        self._conv2.collect(g["conv2.weight"])
        d = w.first.backward(w.fold(_product(d, self._conv2.columns)), self._dg[0])
        _, d_weight, _ = _ops.convolution_backward(
            d.view(n, 14, 14, 24).permute(0, 3, 1, 2),
            self._images,
            self._conv1.kernel,
            *(None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1),  # no bias, stride, padding, dilation, one group
            [False, True, False],  # the gradient of the weight alone
        )
        self._conv1.gradient.copy_(d_weight.permute(0, 2, 3, 1))
        self._conv1.collect(g["conv1.weight"])
        return self.gradient
