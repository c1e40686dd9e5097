"""How a checkpoint's quantized weights are packed. models/packing.py determines it.

Needs no torch.
"""

from dataclasses import dataclass
from typing import Literal

# packed: the 4 bits of compressed-tensors. gguf: those of a GGUF file, whose other types are plain.
Method = Literal["gptq", "awq", "fp8", "mxfp4", "packed", "int8", "gguf"]

BITS = 4  # bits per number in gptq and awq
NUMBERS = 32 // BITS  # packed numbers per stored number
BYTES = 4  # the same for numbers of 8 bits
BLOCK = 128  # rows and columns that share a scale, in block-wise fp8
MX = 32  # inputs that share a scale in mxfp4
STEPS = (128, 64, 32)  # group sizes our products support; a longer group is split into several


@dataclass(frozen=True, slots=True)
class Packing:
    """What is needed to read a quantized weight."""

    method: Method
    group: int = 0  # of 4 bits: inputs per scale; 0: all inputs of an output
    ordered: bool = (
        False  # gptq and packed: the inputs of a group are not adjacent; `g_idx` lists each input's group
    )
    decremented: bool = False  # gptq: zeros are stored minus one
    blocks: bool = False  # fp8: one scale per block, instead of per output or per tensor
    zeros: bool = False  # packed: with zero points
    words: bool = False  # int8: four numbers are packed into one

    @property
    def step(self) -> int:
        """Inputs per scale in our products."""
        return next(step for step in STEPS if self.group % step == 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The schemes whose products use its numbers unchanged. mxfp4, read as plain numbers, has none."""
        if self.method == "mxfp4":
            return ()
        return (self.method,) if self.method in ("fp8", "int8") else ("int4", f"int4-{self.step}")
