"""The types of tensors in a GGUF file.

Reference: ggml, `ggml.h` (the numbers) and `ggml-common.h` (the blocks).
"""

from typing import NamedTuple


class Blocks(NamedTuple):
    """How a type stores numbers: in blocks of `numbers` each, in `nbytes` bytes."""

    numbers: int
    nbytes: int


# The types that can be read, by the names ggml gives them.
READABLE = {
    "F32": Blocks(1, 4),
    "F16": Blocks(1, 2),
    "BF16": Blocks(1, 2),
    "Q4_0": Blocks(32, 18),
    "Q4_1": Blocks(32, 20),
    "Q5_0": Blocks(32, 22),
    "Q5_1": Blocks(32, 24),
    "Q8_0": Blocks(32, 34),
    "Q4_K": Blocks(256, 144),
    "Q5_K": Blocks(256, 176),
    "Q6_K": Blocks(256, 210),
}
FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")  # groups of 32 with a scale and an offset: our int4 holds them exactly

# Every type by its number in the file. Those that cannot be read are here for the errors that name them.
_LISTED = """
    F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S
    IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4
    IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4
"""
NAMES = dict(enumerate(_LISTED.split()))
