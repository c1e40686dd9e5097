"""Weights: from safetensors, one shard at a time, straight into the fused parameters of a decoder."""

import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.errors import BadCheckpoint
from engine.models.checkpoint import FLOATS, opened, shards
from engine.models.decoder import Decoder, Layer

HARMLESS = re.compile(r"rotary_emb\.inv_freq$")  # some exports keep what is computed anyway

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class Slot(NamedTuple):
    """Where a tensor goes: a view into a parameter, and the shape that the file must have."""

    view: Tensor
    shape: tuple[int, ...]


def load_weights(model: Decoder, folder: Path, progress: Progress | None = None) -> None:
    """Reads every header before the first copy, so that a bad checkpoint is refused at once."""
    slots = decoder_slots(model)
    home: dict[str, Path] = {}  # in which shard each tensor lies
    total = 0
    for file in shards(folder):
        with opened(file) as tensors:
            for name in tensors.keys():
                if HARMLESS.search(name) or (name == "lm_head.weight" and model.config.tied):
                    continue
                total += _checked(file, name, tensors.get_slice(name), slots, home)
                home[name] = file
    if missing := [name for name in slots if name not in home]:
        raise BadCheckpoint(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")

    done = 0
    for file in dict.fromkeys(home.values()):
        with opened(file) as tensors:
            for name in (name for name, where in home.items() if where == file):
                tensor = tensors.get_tensor(name)
                slots[name].view.copy_(tensor)
                done += tensor.nbytes
                if progress:
                    progress(done, total)


def _checked(file: Path, name: str, header: Any, slots: dict[str, Slot], home: dict[str, Path]) -> int:
    """The bytes of a tensor that fits its slot."""
    kind, shape = header.get_dtype(), tuple(header.get_shape())
    if name not in slots:
        raise BadCheckpoint(f"{file}: {name} has no place in this model; its config.json may be another's")
    if name in home:
        raise BadCheckpoint(f"{file}: {name} is in {home[name].name} too")
    if shape != slots[name].shape:
        raise BadCheckpoint(f"{file}: {name} is {list(shape)}, the config makes it {list(slots[name].shape)}")
    if kind not in FLOATS:
        raise BadCheckpoint(f"{file}: {name} holds {kind}; only {', '.join(FLOATS)} can be loaded")
    return math.prod(shape) * getattr(torch, FLOATS[kind]).itemsize


def decoder_slots(model: Decoder) -> dict[str, Slot]:
    """Every tensor that a checkpoint of the Llama family has, by its name there."""
    slots = {"model.embed_tokens.weight": whole(model.embed), "model.norm.weight": whole(model.norm.weight)}
    if not model.config.tied:
        slots["lm_head.weight"] = whole(model.head.weight)
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        slots |= {f"model.layers.{index}.{name}": slot for name, slot in layer_slots(layer)}
    return slots


def layer_slots(layer: Layer) -> Iterator[tuple[str, Slot]]:
    dim = layer.shape[-1]
    queries, keys = (heads * dim for heads in layer.heads)
    width, mlp = layer.down.weight.shape
    products = (
        (layer.qkv, {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}),
        (layer.out, {"self_attn.o_proj": width}),
        (layer.gate_up, {"mlp.gate_proj": mlp, "mlp.up_proj": mlp}),
        (layer.down, {"mlp.down_proj": width}),
    )
    for linear, rows in products:
        for kind, fused in linear.named_parameters():
            for name, part in zip(rows, fused.split(tuple(rows.values())), strict=True):
                yield f"{name}.{kind}", whole(part)
    yield "input_layernorm.weight", whole(layer.attn_norm.weight)
    yield "post_attention_layernorm.weight", whole(layer.mlp_norm.weight)
    if layer.qk_norm is not None:  # one scale for all queries, another for all keys
        for name, part in zip(("q_norm", "k_norm"), layer.qk_norm.weight.split(layer.heads), strict=True):
            yield f"self_attn.{name}.weight", Slot(part, (dim,))


def whole(view: Tensor) -> Slot:
    return Slot(view, tuple(view.shape))


def random_weights(model: Decoder, seed: int) -> None:
    """Fills a model as if untrained. Each tensor has its own seed, so the shape of others changes nothing."""
    for name, tensor in model.named_parameters():
        if "norm" in name:
            tensor.fill_(1)
        else:
            generator = torch.Generator(tensor.device).manual_seed(seed ^ zlib.crc32(name.encode()))
            tensor.normal_(0, 0.02, generator=generator)
