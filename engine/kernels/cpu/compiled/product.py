"""Products whose weights are stored for the compiled kernels.

They are faster than torch's, and a row has the same bits in any batch. Measured in docs/cpu-products.md.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu.compiled import build

PANEL, LANES = 32, 16  # outputs of a panel and of a vector
GROUP = 64  # inputs whose activations share a unit, with weights in 8 bits
_AT_ONCE = 2**20  # numbers packed at a time, so that what is made of them stays small


@cache
def why_not(bits: int, dtype: torch.dtype) -> str | None:
    """Return None if activations of this type are multiplied with so many bits here, else the reason."""
    if dtype is not torch.bfloat16:
        return f"the kernels take bfloat16, not {dtype}"
    if bits != 4 and has_amx():
        return "this CPU has AMX, which torch's products use"
    return build.why_not(build.products(bits))


@cache
def has_amx() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


@cache
def _kernel(bits: int) -> Callable[[int, int, int, int, int], int]:
    found = build.kernels(build.products(bits)).product
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)
    return found


def nbytes(bits: int, outputs: int, inputs: int, group: int) -> int:
    """The size of such a weight."""
    outputs, inputs = (-(-each // whole) * whole for each, whole in ((outputs, PANEL), (inputs, group)))
    scales = {4: 4 * inputs // group, 8: 4, 16: 0}[bits]  # of an output
    return outputs * (inputs * bits // 8 + scales)


class _Weight(ctypes.Structure):
    """As in products.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("panels", "scale", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "group")),
    ]


class PanelProduct(nn.Module):
    """The product with a weight [outputs, inputs] of `bits` bits, whose inputs are padded to whole groups.

    `scale`: of each output of whole panels, for 8 bits.
    """

    panels: Tensor
    scale: Tensor | None

    def __init__(
        self,
        bits: int,
        panels: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        shape: tuple[int, int],
        group: int,
    ) -> None:
        super().__init__()
        self.outputs, self.inputs, self.group = *shape, group
        self._padding = -self.inputs % group
        self.register_buffer("panels", panels, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.bias = bias
        self._kept = panels, scale, None if bias is None else bias.float()  # whose addresses the kernel has
        addresses = [None if each is None else each.data_ptr() for each in self._kept]
        self._weight = _Weight(*addresses, self.outputs, self.inputs + self._padding, group)
        self._address = ctypes.addressof(self._weight)
        self._kernel = _kernel(bits)

    def forward(self, x: Tensor) -> Tensor:
        rows, inputs = x.shape
        if x.dtype is not torch.bfloat16 or inputs != self.inputs:
            raise TypeError(f"expected [rows, {self.inputs}] in bfloat16, not {list(x.shape)} in {x.dtype}")
        x = F.pad(x, (0, self._padding)) if self._padding else x.contiguous()
        out = x.new_empty(rows, self.outputs)
        if self._kernel(self._address, x.data_ptr(), rows, out.data_ptr(), torch.get_num_threads()):
            raise MemoryError(f"no memory for the integers of {rows} rows of {inputs} activations")
        return out

    __call__ = forward  # as in PackedLinear


def bfloat16_panels(weight: Tensor, bias: Tensor | None) -> PanelProduct:
    def panels(part: Tensor) -> Tensor:
        return part.view(-1, 2, LANES, part.shape[1] // 2, 2).permute(0, 3, 1, 2, 4)

    outputs, inputs = weight.shape
    return PanelProduct(16, _packed(panels, 2, weight.detach()), None, bias, (outputs, inputs), 2)


class Int8Panels(PanelProduct):
    """With numbers [outputs, inputs] in -127 to 127, times a scale per output."""

    scale: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        def panels(part: Tensor) -> Tensor:
            whole = part.view(torch.uint8) ^ 128  # unsigned: 128 is 0
            return whole.view(-1, 2, LANES, part.shape[1] // 4, 4).permute(0, 3, 1, 2, 4)

        outputs, inputs = numbers.shape
        by_output = F.pad(scale.float(), (0, -outputs % PANEL))
        super().__init__(8, _packed(panels, GROUP, numbers), by_output, bias, (outputs, inputs), GROUP)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        laid = self.panels.view(-1, (self.inputs + self._padding) // 4, PANEL, 4).permute(0, 2, 1, 3)
        numbers = laid.flatten(2).flatten(0, 1).float().sub_(128)
        return (numbers * self.scale[:, None])[: self.outputs, : self.inputs]


class Int4Panels(PanelProduct):
    """With numbers [outputs, inputs] in 0 to 15: (number - 8) * scale + offset, by group of inputs.

    A panel has 32 scales and 32 offsets in bfloat16 before the numbers of each group. A byte has the numbers
    of two inputs of one output, which are four inputs apart.
    """

    def __init__(self, numbers: Tensor, scale: Tensor, offset: Tensor, bias: Tensor | None) -> None:
        def panels(part: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
            eight = part.view(-1, PANEL, part.shape[1] // 8, 2, 4)
            both = (eight[..., 0, :] | eight[..., 1, :] << 4).transpose(1, 2)
            groups = scale.shape[1]
            heads = torch.stack((scale, offset), 1).bfloat16().view(-1, PANEL, 2, groups).permute(0, 3, 2, 1)
            heads = heads.reshape(-1, groups, 2 * PANEL).view(torch.uint8)
            return torch.cat((heads, both.reshape(len(heads), groups, -1)), 2)

        outputs, inputs = numbers.shape
        group = inputs // scale.shape[1]
        laid = _packed(panels, group, numbers, scale, offset)
        super().__init__(4, laid, None, bias, (outputs, inputs), group)

    def dequantized(self, outputs: slice = slice(None)) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32. `outputs`: whole panels."""
        first, end, _ = outputs.indices(self.outputs)
        by_group = self.panels[first // PANEL : -(-end // PANEL)].view(
            -1, self.inputs // self.group, 4 * PANEL + self.group * LANES
        )
        heads, both = by_group[..., : 4 * PANEL], by_group[..., 4 * PANEL :]
        scale, offset = heads.contiguous().view(torch.bfloat16).float().unflatten(2, (2, PANEL)).unbind(2)
        both = both.unflatten(2, (-1, PANEL, 4))
        numbers = torch.stack((both & 15, both >> 4), 4).permute(0, 3, 1, 2, 4, 5).flatten(3)
        scale, offset = (each.transpose(1, 2)[..., None] for each in (scale, offset))
        weight = torch.addcmul(offset, numbers.float().sub_(8), scale)
        return weight.flatten(2).flatten(0, 1)[: end - first]


def _packed(panels: Callable[..., Tensor], group: int, weight: Tensor, *more: Tensor) -> Tensor:
    """The panels of a weight, with zero inputs up to whole groups and zero outputs up to whole panels.

    `more`: others with its outputs.
    """
    rows = max(1, _AT_ONCE // weight.shape[1] // PANEL) * PANEL
    parts = []
    for part, *others in zip(weight.split(rows), *(each.split(rows) for each in more), strict=True):
        below = (0, 0, 0, -len(part) % PANEL)
        whole = F.pad(F.pad(part, (0, -part.shape[1] % group)), below)
        parts.append(panels(whole, *(F.pad(each, below) for each in others)).flatten(1).contiguous())
    return torch.cat(parts)
