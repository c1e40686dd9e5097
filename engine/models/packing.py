"""How a checkpoint's weights are quantized, from config.json or a separate file.

The files decide which weights are quantized: the others are stored as plain numbers. Needs no torch.
"""

from typing import NamedTuple

from engine.api.errors import BadCheckpoint
from engine.gguf.header import is_gguf
from engine.gguf.kinds import FOUR_BITS
from engine.models.checkpoint import FLOATS, Header, check
from engine.models.fields import MOST_WIDTH, Fields
from engine.quant.packing import BITS, BLOCK, BYTES, MX, NUMBERS, NV, STEPS, Packing

KNOWN = "gptq, awq, fp8, mxfp4, modelopt and compressed-tensors can be loaded"


# Files beside config.json that describe the weights, and the methods they are about.
SEPARATE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}


class StoredTensor(NamedTuple):
    """One of the tensors that make up a quantized weight."""

    kinds: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # the allowed shapes
    needed: bool = True


def packing_of(
    packing: Packing, headers: dict[str, Header], slot: str, shape: tuple[int, ...]
) -> tuple[Packing, list[str]] | None:
    """Return how a weight is packed, and the tensors that make it up. None: it is not quantized.

    Raises if their dtypes or shapes are wrong. Where weights are packed in several ways, the tensors decide.
    """
    trouble: BadCheckpoint | None = None
    for each in packing.choices or (packing,):
        try:
            if names := tensors_of(each, headers, slot, shape):
                return each, names
        except BadCheckpoint as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    return None


def tensors_of(packing: Packing, headers: dict[str, Header], slot: str, shape: tuple[int, ...]) -> list[str]:
    """Return the tensors that make up a weight; empty if it is not quantized.

    Raises if their dtypes or shapes are wrong.
    """
    if packing.method == "mxfp4":
        return _stacked(headers, slot, shape) if len(shape) == 3 else []
    if packing.method == "gguf":
        if slot not in headers or headers[slot].kind not in FOUR_BITS or len(shape) != 2:
            return []
        check(slot, headers[slot], FOUR_BITS, [shape])
        return [slot]
    product, _, kind = slot.rpartition(".")
    return (
        _tensors_of(packing, headers, product, (shape[0], shape[1]))
        if kind == "weight" and len(shape) == 2
        else []
    )


def _stacked(headers: dict[str, Header], slot: str, shape: tuple[int, ...]) -> list[str]:
    """The tensors of the mxfp4 weights of all experts, [experts, inputs, outputs]."""
    blocks, scales = f"{slot}_blocks", f"{slot}_scales"
    experts, inputs, outputs = shape
    if blocks not in headers:
        return []
    if inputs % MX:
        raise BadCheckpoint(f"{headers[blocks].file}: {slot} has {inputs} inputs, not a multiple of {MX}")
    if scales not in headers:
        raise BadCheckpoint(f"{headers[blocks].file}: {blocks} exists, but {scales} is missing")
    check(blocks, headers[blocks], ("U8",), [(experts, outputs, inputs // MX, MX // 2)])
    check(scales, headers[scales], ("U8",), [(experts, outputs, inputs // MX)])
    return [blocks, scales]


def _tensors_of(
    packing: Packing, headers: dict[str, Header], product: str, shape: tuple[int, int]
) -> list[str]:
    parts = _parts(packing, *shape)
    mark = f"{product}.{next(iter(parts))}"
    if mark not in headers or (mark.endswith(".weight") and headers[mark].kind in FLOATS):
        return []
    if packing.method in ("gptq", "awq") and any(side % NUMBERS for side in shape):
        raise BadCheckpoint(
            f"{headers[mark].file}: {mark} has shape {list(shape)}; both must be multiples of {NUMBERS}"
        )
    if packing.method == "fp4" and shape[1] % packing.group:
        raise BadCheckpoint(
            f"{headers[mark].file}: {mark} has {shape[1]} inputs, not a multiple of {packing.group}"
        )
    found = []
    for suffix, part in parts.items():
        if (name := f"{product}.{suffix}") in headers:
            check(name, headers[name], part.kinds, part.shapes)
            found.append(name)
        elif part.needed:
            raise BadCheckpoint(f"{headers[mark].file}: {mark} exists, but {name} is missing")
    if packing.method == "fp8" and len(found) != 2:
        scale = f"{product}.weight_scale"
        raise BadCheckpoint(f"{headers[mark].file}: {mark} needs either {scale} or {scale}_inv")
    return found


def _parts(packing: Packing, outputs: int, inputs: int) -> dict[str, StoredTensor]:
    """Return the tensors that make up a weight of this shape. The first one marks it as quantized."""
    if packing.method == "fp4":
        return _float_parts(packing, outputs, inputs)
    if packing.method in ("packed", "int8"):
        return _compressed_parts(packing, outputs, inputs)
    if packing.method == "fp8":
        blocks = -(-outputs // BLOCK), -(-inputs // BLOCK)
        shapes = (blocks,) if packing.blocks else ((), (1,), (1, 1), (outputs,), (outputs, 1))
        scale = StoredTensor(tuple(FLOATS), shapes, needed=False)  # one of two names
        return {
            "weight": StoredTensor(("F8_E4M3",), ((outputs, inputs),)),
            "weight_scale": scale,
            "weight_scale_inv": scale,
        }
    groups = -(-inputs // packing.group) if packing.group else 1
    along, across = (inputs // NUMBERS, outputs), (inputs, outputs // NUMBERS)
    found = {
        "qweight": StoredTensor(("I32",), (along if packing.method == "gptq" else across,)),
        "qzeros": StoredTensor(("I32",), ((groups, outputs // NUMBERS),)),
        "scales": StoredTensor(tuple(FLOATS), ((groups, outputs),)),
    }
    if packing.method == "gptq":
        found["g_idx"] = StoredTensor(("I32", "I64"), ((inputs,),), needed=packing.ordered)
    return found


def _float_parts(packing: Packing, outputs: int, inputs: int) -> dict[str, StoredTensor]:
    found = {
        "weight" if packing.modelopt else "weight_packed": StoredTensor(("U8",), ((outputs, inputs // 2),)),
        "weight_scale": StoredTensor(
            ("F8_E4M3",) if packing.group == NV else ("U8", "F8_E8M0"), ((outputs, inputs // packing.group),)
        ),
    }
    if packing.group == NV:
        name = "weight_scale_2" if packing.modelopt else "weight_global_scale"
        found[name] = StoredTensor(("F32",), ((), (1,), (1, 1)))
    return found


def _compressed_parts(packing: Packing, outputs: int, inputs: int) -> dict[str, StoredTensor]:
    by_output = StoredTensor(tuple(FLOATS), ((), (1,), (1, 1), (outputs,), (outputs, 1)))
    if packing.method == "int8" and not packing.words:
        return {"weight": StoredTensor(("I8",), ((outputs, inputs),)), "weight_scale": by_output}
    numbers = NUMBERS if packing.method == "packed" else BYTES
    found = {
        "weight_packed": StoredTensor(("I32",), ((outputs, -(-inputs // numbers)),)),
        "weight_scale": by_output,
        "weight_shape": StoredTensor(("I64", "I32"), ((2,),)),
    }
    if packing.method == "packed":
        groups = -(-inputs // packing.group) if packing.group else 1
        found["weight_scale"] = StoredTensor(tuple(FLOATS), ((outputs, groups),))
        if packing.zeros:
            found["weight_zero_point"] = StoredTensor(("I32",), ((-(-outputs // NUMBERS), groups),))
        if packing.ordered:
            found["weight_g_idx"] = StoredTensor(("I32", "I64"), ((inputs,),))
    return found


def packing(fields: Fields) -> Packing | None:
    """Return the packing of the model with this config.json. None: plain numbers. Raises if unsupported."""
    if (found := described(fields)) is None:
        return None
    return _read(*found)


def described(fields: Fields) -> tuple[Fields, str] | None:
    """Return the description of the quantized weights and the name of the method. None: plain numbers."""
    if fields.get("quantization_config") is not None:
        found = fields.inside("quantization_config")
        return found, found.text("quant_method", "none is named")
    # Files from before config.json held this, and of tools that still write them.
    for name, method in SEPARATE.items():
        if (file := fields.file.with_name(name)).is_file():
            found = Fields.read(file)
            return found, found.text("quant_method", method)
    return None


def _read(fields: Fields, method: str) -> Packing:
    match method:
        case "gptq":
            return _gptq(fields)
        case "awq":
            return _awq(fields)
        case "fp8":
            return _fp8(fields)
        case "mxfp4":
            return Packing("mxfp4")
        case "modelopt" | "modelopt_fp4":
            return _modelopt(fields.inside("quantization") if fields.given("quantization") else fields)
        case "compressed-tensors":
            return _compressed(fields)
        case "gguf" if is_gguf(fields.file):
            return Packing("gguf", STEPS[-1])
    raise fields.unsupported("quant_method", f"among quantized formats, {KNOWN}")


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


def _modelopt(fields: Fields) -> Packing:
    if fields.text("quant_algo", "none is named").upper() != "MIXED_PRECISION":
        return _algorithm(fields)
    layers = fields.inside("quantized_layers")
    return _mixed({_algorithm(layers.inside(name)) for name in layers.values}, fields, "quantized_layers")


def _algorithm(fields: Fields) -> Packing:
    match fields.text("quant_algo", "none is named").upper():
        case "FP8" | "FP8_PER_CHANNEL_PER_TOKEN":
            return Packing("fp8")
        case "NVFP4" | "W4A16_NVFP4":
            if fields.whole("group_size", NV, high=MOST_WIDTH) != NV:
                raise fields.unsupported("group_size", f"of NVFP4, only {NV} can be loaded")
            return Packing("fp4", NV, modelopt=True)
    able = "FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4 and MIXED_PRECISION"
    raise fields.unsupported("quant_algo", f"of modelopt, only {able} can be loaded")


def _mixed(found: set[Packing], fields: Fields, key: str) -> Packing:
    """Return the packing of weights that each have one of these."""
    if not found:
        raise fields.unsupported(key, "it does not describe the weights")
    if len(found) == 1:
        return found.pop()
    # Those with more tensors come first, as the others would not miss these.
    return Packing(
        "mixed", choices=tuple(sorted(found, key=lambda each: (-each.zeros - each.ordered, repr(each))))
    )


FORMS = (
    "float-quantized",
    "int-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)


def _compressed(fields: Fields) -> Packing:
    form = fields.text("format", "none is named")
    able = f"of compressed-tensors, only {', '.join(FORMS)} and mixed-precision can be loaded"
    if form not in (*FORMS, "mixed-precision"):
        raise fields.unsupported("format", able)
    for key in ("sparsity_config", "transform_config"):
        if fields.get(key):
            raise fields.unsupported(key, "only weights without it can be loaded")
    groups, found = fields.inside("config_groups"), set[Packing]()
    for name in groups.values:
        group = groups.inside(name)
        own = group.text("format", form)
        if own not in FORMS:
            raise group.unsupported("format", able)
        if not (weights := group.inside("weights")).values:
            continue  # it is not about weights
        if own == "float-quantized":
            found.add(_floats(weights))
        elif own.startswith(("nvfp4", "mxfp4")):
            found.add(_small_floats(weights, NV if own.startswith("nvfp4") else MX))
        else:
            found.add(_whole_numbers(weights, own))
    if not found and form == "float-quantized":
        return Packing("fp8")
    return _mixed(found, fields, "config_groups")


def _small_floats(weights: Fields, group: int) -> Packing:
    if (weights.whole("num_bits", high=64), weights.text("type", "float")) != (BITS, "float"):
        raise weights.unsupported("num_bits", f"only floats of {BITS} bits can be loaded")
    _strategy(weights, ("group", "tensor_group"), "tensor_group")
    if weights.whole("group_size", group, high=MOST_WIDTH) != group:
        raise weights.unsupported("group_size", f"only {group} can be loaded")
    if not weights.flag("symmetric", True):
        raise weights.unsupported("symmetric", "of floats, only weights without zero points can be loaded")
    return Packing("fp4", group)


def _floats(weights: Fields) -> Packing:
    if (weights.whole("num_bits", high=64), weights.text("type")) != (8, "float"):
        raise weights.unsupported("num_bits", "only floats of 8 bits can be loaded")
    strategy = _strategy(weights, ("tensor", "channel", "block"), "tensor")
    usual = (None, [BLOCK, BLOCK], f"{BLOCK}x{BLOCK}")
    if strategy == "block" and weights.get("block_structure") not in usual:
        raise weights.unsupported("block_structure", f"only [{BLOCK}, {BLOCK}] can be loaded")
    return Packing("fp8", blocks=strategy == "block")


def _whole_numbers(weights: Fields, form: str) -> Packing:
    bits, words = weights.whole("num_bits", high=64), form == "pack-quantized"
    if weights.text("type", "int") != "int":
        raise weights.unsupported("type", f"of {form}, only int can be loaded")
    if bits != 8 and not (words and bits == BITS):
        raise weights.unsupported(
            "num_bits", f"of {form}, only {'4 and 8 bits' if words else '8 bits'} can be loaded"
        )
    zeros = not weights.flag("symmetric", True)
    if bits == 8:
        if zeros:
            raise weights.unsupported(
                "symmetric", "of 8 bits, only weights without zero points can be loaded"
            )
        _strategy(weights, ("tensor", "channel"), "tensor")
        return Packing("int8", words=words)
    strategy = _strategy(weights, ("channel", "group"), "group")
    order = weights.get("actorder")
    if order not in (None, False, True, "group", "dynamic", "weight", "static"):
        raise weights.unsupported("actorder", "only group and weight can be loaded")
    size = _group(weights, "group_size") if strategy == "group" else 0
    return Packing("packed", size, ordered=order in (True, "group", "dynamic"), zeros=zeros)


def _strategy(weights: Fields, able: tuple[str, ...], default: str) -> str:
    strategy = weights.text("strategy", default)
    if strategy not in able:
        *others, last = able
        raise weights.unsupported("strategy", f"only {', '.join(others)} and {last} can be loaded")
    return strategy
