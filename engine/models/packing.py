"""How the weights of a checkpoint are quantized already: by config.json, or by a file beside it.

Which of them are is for the files to say: a weight that a list leaves out lies there as plain numbers.
Needs no torch.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.errors import BadCheckpoint
from engine.models.checkpoint import FLOATS, Header, check
from engine.models.fields import MOST_WIDTH, Fields

Method = Literal["gptq", "awq", "fp8"]

BITS = 4  # of a number of gptq and awq
NUMBERS = 32 // BITS  # of them in one number of a file
BLOCK = 128  # rows and columns that share a scale, in fp8 by blocks
STEPS = (128, 64, 32)  # inputs of a scale that our products take; a longer group is several such
KNOWN = "gptq, awq, fp8 and compressed-tensors can be loaded"


class Part(NamedTuple):
    """A tensor that a quantized weight is made of."""

    kinds: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # one of these
    needed: bool = True


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

    def tensors(self, headers: dict[str, Header], product: str, shape: tuple[int, int]) -> list[str]:
        """Those that a weight [outputs, inputs] is made of; none where it is not quantized.

        Raises where they are not as they have to be.
        """
        mark = f"{product}.weight" if self.method == "fp8" else f"{product}.qweight"
        if mark not in headers or (self.method == "fp8" and headers[mark].kind != "F8_E4M3"):
            return []
        if self.method != "fp8" and any(side % NUMBERS for side in shape):
            raise BadCheckpoint(
                f"{headers[mark].file}: {mark} is of {list(shape)}, no multiples of {NUMBERS}"
            )
        found = []
        for suffix, part in self._parts(*shape).items():
            if (name := f"{product}.{suffix}") in headers:
                check(name, headers[name], part.kinds, part.shapes)
                found.append(name)
            elif part.needed:
                raise BadCheckpoint(f"{headers[mark].file}: {mark} is there, and {name} is missing")
        if self.method == "fp8" and len(found) != 2:
            scale = f"{product}.weight_scale"
            raise BadCheckpoint(f"{headers[mark].file}: {mark} has to have either {scale} or {scale}_inv")
        return found

    def _parts(self, outputs: int, inputs: int) -> dict[str, Part]:
        """What a weight of that shape has to be made of."""
        if self.method == "fp8":
            blocks = -(-outputs // BLOCK), -(-inputs // BLOCK)
            shapes = (blocks,) if self.blocks else ((), (1,), (1, 1), (outputs,), (outputs, 1))
            scale = Part(tuple(FLOATS), shapes, needed=False)  # one of two names
            return {
                "weight": Part(("F8_E4M3",), ((outputs, inputs),)),
                "weight_scale": scale,
                "weight_scale_inv": scale,
            }
        groups = -(-inputs // self.group) if self.group else 1
        along, across = (inputs // NUMBERS, outputs), (inputs, outputs // NUMBERS)
        found = {
            "qweight": Part(("I32",), (along if self.method == "gptq" else across,)),
            "qzeros": Part(("I32",), ((groups, outputs // NUMBERS),)),
            "scales": Part(tuple(FLOATS), ((groups, outputs),)),
        }
        if self.method == "gptq":
            found["g_idx"] = Part(("I32", "I64"), ((inputs,),), needed=self.ordered)
        return found


def packing(fields: Fields) -> Packing | None:
    """Of the model with this config.json. None: plain numbers. Raises for what cannot be loaded."""
    if fields.get("quantization_config") is not None:
        found = fields.inside("quantization_config")
        return _read(found, found.text("quant_method", "none is named"))
    # What the tools wrote before config.json had a place for it.
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        if (file := fields.file.with_name(name)).is_file():
            found = Fields.read(file)
            return _read(found, found.text("quant_method", method))
    return None


def _read(fields: Fields, method: str) -> Packing:
    match method:
        case "gptq":
            return _gptq(fields)
        case "awq":
            return _awq(fields)
        case "fp8":
            return _fp8(fields)
        case "compressed-tensors":
            return _compressed(fields)
    raise fields.unsupported("quant_method", f"of quantized weights, {KNOWN}")


def _gptq(fields: Fields) -> Packing:
    form = fields.text("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2") or fields.flag("is_marlin_format", False):
        key = "checkpoint_format" if form not in ("gptq", "gptq_v2") else "is_marlin_format"
        raise fields.unsupported(key, "of gptq, the forms gptq and gptq_v2 can be loaded")
    if fields.text("pack_dtype", "int32") != "int32":
        raise fields.unsupported("pack_dtype", "only int32 can be loaded")
    _four_bits(fields, "bits")
    ordered = fields.flag("desc_act", False)
    return Packing("gptq", _group(fields, "group_size"), ordered, decremented=form == "gptq")


def _awq(fields: Fields) -> Packing:
    old = fields.given("w_bit")
    if fields.text("version", "gemm").lower() != "gemm":
        raise fields.unsupported("version", "of awq, only gemm can be loaded")
    if not fields.flag("zero_point", True):
        raise fields.unsupported("zero_point", "of awq, only weights with zero points can be loaded")
    _four_bits(fields, "w_bit" if old else "bits")
    return Packing("awq", _group(fields, "q_group_size" if old else "group_size"))


def _four_bits(fields: Fields, key: str) -> None:
    if fields.whole(key, high=64) != BITS:
        raise fields.unsupported(key, f"only {BITS} bits can be loaded")


def _group(fields: Fields, key: str) -> int:
    size = fields.whole(key, low=-1, high=MOST_WIDTH)
    if size == -1:
        return 0
    if size == 0 or size % STEPS[-1]:
        raise fields.unsupported(key, f"only -1 and multiples of {STEPS[-1]} can be loaded")
    return size


def _fp8(fields: Fields) -> Packing:
    if fields.text("fmt", "e4m3") != "e4m3":
        raise fields.unsupported("fmt", "only e4m3 can be loaded")
    block = fields.list("weight_block_size", [])
    if block not in ([], [BLOCK, BLOCK]):
        raise fields.unsupported("weight_block_size", f"only [{BLOCK}, {BLOCK}] can be loaded")
    return Packing("fp8", blocks=bool(block))


def _compressed(fields: Fields) -> Packing:
    if fields.text("format", "none is named") != "float-quantized":
        raise fields.unsupported("format", "of compressed-tensors, only float-quantized can be loaded")
    groups, strategies = fields.inside("config_groups"), set()
    for name in groups.values:
        weights = groups.inside(name).inside("weights")
        if not weights.values:
            continue  # it is about something else
        if (weights.whole("num_bits", high=64), weights.text("type")) != (8, "float"):
            raise weights.unsupported("num_bits", "only floats of 8 bits can be loaded")
        strategy = weights.text("strategy", "tensor")
        if strategy not in ("tensor", "channel", "block"):
            raise weights.unsupported("strategy", "only tensor, channel and block can be loaded")
        usual = (None, [BLOCK, BLOCK], f"{BLOCK}x{BLOCK}")
        if strategy == "block" and weights.get("block_structure") not in usual:
            raise weights.unsupported("block_structure", f"only [{BLOCK}, {BLOCK}] can be loaded")
        strategies.add(strategy == "block")
    if len(strategies) > 1:
        raise fields.unsupported("config_groups", "only blocks or only whole outputs can be loaded")
    return Packing("fp8", blocks=True in strategies)
