"""An emulator of a few PTX instructions, for kernels with inline assembly in Triton's interpreter.

A register is an array of 32-bit numbers, one for each time the assembly runs. Only the instructions that the
kernels use are supported; others raise an error. For whole kernels it only finds which parameters they read.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch

Register = np.ndarray
Operation = Callable[..., Register]

_LINE = re.compile(r"(?P<name>[a-z][\w.]*)\s+(?P<to>\{[^}]*\}|[$\w]+),\s*(?P<given>.*)")


def run(text: str, given: Sequence[Register], results: int) -> list[Register]:
    """The inputs are the operands from $results on; return the operands before them."""
    held = {f"${results + n}": each.astype(np.uint32) for n, each in enumerate(given)}
    for line in (each.strip() for each in text.strip().strip("{}").replace("\n", " ").split(";")):
        if not line or line.startswith(".reg"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise NotImplementedError(f"cannot parse {line!r}")
        operands = re.findall(r"\{[^}]*\}|[^,\s]+", found["given"])
        if found["name"] == "mov.b32" and found["to"].startswith("{"):
            low, high = _names(found["to"])
            held[low], held[high] = held[operands[0]] & 0xFFFF, held[operands[0]] >> 16
        elif found["name"] == "mov.b32" and operands[0].startswith("{"):
            low, high = _names(operands[0])
            held[found["to"]] = held[low] | held[high] << 16
        elif found["name"] in _OPERATIONS:
            numbers = [held[each] if each in held else np.uint32(int(each, 0)) for each in operands]
            held[found["to"]] = np.asarray(_OPERATIONS[found["name"]](*numbers), np.uint32)
        else:
            raise NotImplementedError(f"the instruction {found['name']} is not supported")
    return [held[f"${n}"] for n in range(results)]


def loads_at_once(text: str) -> bool:
    """Whether a kernel loads everything before its first sum over threads, so that it waits only once."""
    return "ld.global" not in text.partition("shfl.sync")[2]


def reached_before(text: str, mark: str) -> set[int]:
    """Return the indexes of the parameters that a kernel reads or writes through before `mark`.

    What the L2 cache is asked to read does not count.
    """
    before, found, _ = text.partition(mark)
    assert found, f"there is no {mark}"
    made_of: dict[str, list[str]] = {}
    for to, given in re.findall(r"^\s*(?:@\S+\s+)?[a-z][\w.]*\s+(%rd\d+), ([^;]*);", before, re.MULTILINE):
        made_of.setdefault(to, []).append(given)
    places, known = set(), set()
    left = re.findall(
        r"(?:(?:ld|ld\.volatile|st|atom|red)\.global|cp\.async(?!\.bulk\.prefetch))[^;]*;", before
    )
    while left:
        given = left.pop()
        places |= {int(place) for place in re.findall(r"_param_(\d+)", given)}
        for register in set(re.findall(r"%rd\d+", given)) - known:
            known.add(register)
            left += made_of.get(register, [])
    return places


def _names(braces: str) -> list[str]:
    return [each.strip() for each in braces.strip("{}").split(",")]


def _permuted(a: Register, b: Register, places: Register) -> Register:
    """Return bytes of the pair (a, b), selected by the hex digits of `places`."""
    both = a.astype(np.uint64) | np.asarray(b, np.uint64) << np.uint64(32)
    out = np.zeros_like(both)
    for nth in range(4):
        place = int(places) >> 4 * nth & 7
        out |= (both >> np.uint64(8 * place) & np.uint64(255)) << np.uint64(8 * nth)
    return out.astype(np.uint32)


def _by_table(a: Register, b: Register, c: Register, table: Register) -> Register:
    """Compute each bit from the bits of a, b and c through a lookup table."""
    out = np.zeros_like(a)
    for row in range(8):
        if int(table) >> row & 1:
            out |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return out


def _pairs(operation: Callable[..., torch.Tensor], kind: torch.dtype) -> Operation:
    """Apply the operation to both 16-bit floats of each register, rounding once."""

    def of_pairs(*given: Register) -> Register:
        wide = [
            torch.from_numpy(np.atleast_1d(each).astype(np.uint32)[:, None].view(np.int16))
            .view(kind)
            .double()
            for each in given
        ]
        return operation(*wide).to(kind).view(torch.int16).numpy().view(np.uint32)[:, 0]

    return of_pairs


def _as_floats(register: Register) -> np.ndarray:
    return np.atleast_1d(register).astype(np.uint32).view(np.float32)


def _from_eight_bits(register: Register) -> Register:
    numbers = np.stack((register & 255, register >> 8 & 255), -1).astype(np.uint8)
    wide = torch.from_numpy(numbers).view(torch.float8_e4m3fn).half()
    return wide.view(torch.int16).numpy().view(np.uint32)[..., 0]


_OPERATIONS: dict[str, Operation] = {
    "mov.b32": lambda a: a,
    "shr.u32": lambda a, by: a >> by,
    "shl.b32": lambda a, by: a << by,
    "prmt.b32": _permuted,
    "lop3.b32": _by_table,
    "sub.rn.f16x2": _pairs(lambda a, b: a - b, torch.float16),
    "mul.rn.f16x2": _pairs(lambda a, b: a * b, torch.float16),
    "fma.rn.f16x2": _pairs(lambda a, b, c: a * b + c, torch.float16),
    "fma.rn.bf16x2": _pairs(lambda a, b, c: a * b + c, torch.bfloat16),
    "cvt.f32.f16": lambda a: a.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32),
    "cvt.rn.f16x2.e4m3x2": _from_eight_bits,
    "add.rn.f32": lambda a, b: (_as_floats(a) + _as_floats(b)).view(np.uint32),
}
