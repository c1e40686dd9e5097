"""How a checkpoint's quantized weights are packed. models/packing.py determines it.

Needs no torch.
"""

from dataclasses import dataclass
from typing import Literal

# packed: the 4-bit integers of compressed-tensors. fp4: 4-bit floats. mxfp4: those of gpt-oss's experts.
# gguf: the 4 bits of a GGUF file, whose other types are plain. mixed: several of them.
Method = Literal["gptq", "awq", "fp8", "fp4", "mxfp4", "packed", "int8", "gguf", "mixed"]

BITS = 4  # bits per number in gptq and awq
NUMBERS = 32 // BITS  # packed numbers per stored number
BYTES = 4  # the same for numbers of 8 bits
BLOCK = 128  # rows and columns that share a scale, in block-wise fp8
MX = 32  # inputs that share a scale in mxfp4
NV = 16  # the same in nvfp4
STEPS = (128, 64, 32)  # group sizes our products support; a longer group is split into several


@dataclass(frozen=True, slots=True)
class Packing:
    """What is needed to read a quantized weight."""

    method: Method
    group: int = 0  # of 4 bits: inputs per scale; 0: all inputs of an output; of fp4 NV or MX
    ordered: bool = (
        False  # gptq and packed: the inputs of a group are not adjacent; `g_idx` lists each input's group
    )
    decremented: bool = False  # gptq: zeros are stored minus one
    blocks: bool = False  # fp8: one scale per block, instead of per output or per tensor
    zeros: bool = False  # packed: with zero points
    words: bool = False  # int8: four numbers are packed into one
    modelopt: bool = False  # fp4: with the names and the scale of modelopt, else of compressed-tensors
    choices: tuple["Packing", ...] = ()  # mixed: each weight has one of these

    @property
    def step(self) -> int:
        """Inputs per scale in our products."""
        return next(step for step in STEPS if self.group % step == 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The schemes whose products use its numbers unchanged. mxfp4, read as plain numbers, has none."""
        if self.method == "mxfp4":
            return ()
        if self.method in ("fp4", "mixed"):  # no other scheme has such numbers
            return ("none",)
        return (self.method,) if self.method in ("fp8", "int8") else ("int4", f"int4-{self.step}")
