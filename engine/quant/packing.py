"""What has to be known of a checkpoint's quantized weights to read them. models/packing.py finds it out.

Needs no torch.
"""

from dataclasses import dataclass
from typing import Literal

Method = Literal["gptq", "awq", "fp8"]

BITS = 4  # of a number of gptq and awq
NUMBERS = 32 // BITS  # of them in one number of a file
BLOCK = 128  # rows and columns that share a scale, in fp8 by blocks
STEPS = (128, 64, 32)  # inputs of a scale that our products take; a longer group is several such


@dataclass(frozen=True, slots=True)
class Packing:
    """What has to be known to read a quantized weight."""

    method: Method
    group: int = 0  # of gptq and awq: inputs of a scale; 0: all that an output has
    ordered: bool = False  # of gptq: groups are of inputs that lie apart, and `g_idx` tells which
    decremented: bool = False  # of gptq: zeros are stored less one
    blocks: bool = False  # of fp8: a scale for each block, not for each output or for all

    @property
    def step(self) -> int:
        """Inputs of a scale as our products have it."""
        return next(step for step in STEPS if self.group % step == 0)

    @property
    def names(self) -> tuple[str, ...]:
        """What the scheme is called whose products take its numbers as they are."""
        return ("fp8",) if self.method == "fp8" else ("int4", f"int4-{self.step}")
