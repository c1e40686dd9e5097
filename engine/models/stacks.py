"""Experts that a checkpoint holds as one tensor for each layer, read as if each had its own.

[experts, outputs, inputs]; that of gates has the rows of the products beside them below its own. Those of
Llama 4 are transposed, and Granite's have names of their own.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from engine.models.checkpoint import Header

_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_GATE_UP = ("experts.gate_up_proj", "input_linear.weight")
_DOWN = ("experts.down_proj", "output_linear.weight")
_STACKS = {"gate": (_GATE_UP, 0, 2), "up": (_GATE_UP, 1, 2), "down": (_DOWN, 0, 1)}


class StackedExpert(NamedTuple):
    """Rows of one expert in a tensor of all."""

    tensor: str
    expert: int
    first: int
    shape: tuple[int, ...]
    transposed: bool

    def span(self, span: tuple[slice, ...]) -> tuple[slice, ...]:
        """Where part of the expert's weight is in the tensor."""
        rows, *rest = span
        rows = slice(self.first + rows.start, self.first + rows.stop)
        axes = (*(rest or [slice(0, self.shape[1])]), rows) if self.transposed else (rows, *rest)
        return slice(self.expert, self.expert + 1), *axes

    def weight(self, part: Tensor) -> Tensor:
        """Return such a part of the tensor as rows of the expert's weight."""
        return part[0].T if self.transposed else part[0]


def stacked_experts(
    names: Iterable[str], headers: Mapping[str, Header], *, transposed: bool
) -> dict[str, StackedExpert]:
    """Return those of the weights that are part of such a tensor, by name. `transposed`: as in Family.

    Their shapes are still to be checked. An expert too many leaves its tensor without a reader.
    """
    found: dict[str, StackedExpert] = {}
    counts: dict[str, int] = {}
    for name in names:
        if name in headers or (match := _EXPERT.fullmatch(name)) is None:
            continue
        stacks, half, halves = _STACKS[match[3]]
        tensors, expert = [f"{match[1]}.{stack}" for stack in stacks], int(match[2])
        tensor = next((each for each in tensors if each in headers), "")
        if (header := headers.get(tensor)) is None or len(header.shape) != 3:
            continue
        outputs, inputs = header.shape[:0:-1] if transposed else header.shape[1:]
        if outputs % halves:
            continue
        rows = outputs // halves
        found[name] = StackedExpert(tensor, expert, half * rows, (rows, inputs), transposed)
        counts[tensor] = max(counts.get(tensor, 0), expert + 1)
    return {
        name: each for name, each in found.items() if counts[each.tensor] == headers[each.tensor].shape[0]
    }
