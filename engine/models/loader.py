"""Weights: from safetensors, one shard at a time, straight into the fused parameters of a decoder."""

import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.errors import BadCheckpoint
from engine.models.checkpoint import FLOATS, opened, shards
from engine.models.decoder import Decoder, Layer

HARMLESS = re.compile(r"rotary_emb\.inv_freq$")  # some exports keep what is computed anyway

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class Slot(NamedTuple):
    """Where a tensor goes: a view into a parameter, and the shape that the file must have."""

    view: Tensor
    shape: tuple[int, ...]


class Checkpoint:
    """The tensors of a folder. Every header is read at once, so that a bad checkpoint is refused at once."""

    def __init__(self, model: Decoder, folder: Path, progress: Progress | None = None) -> None:
        """Of the model only shapes are asked: it may be hollow. `progress` hears of the first reading."""
        self._progress = progress
        self._home: dict[str, Path] = {}  # in which shard each tensor lies
        self._total = self._done = 0
        slots = decoder_slots(model)
        for file in shards(folder):
            with opened(file) as tensors:
                for name in tensors.keys():
                    if HARMLESS.search(name) or (name == "lm_head.weight" and model.config.tied):
                        continue
                    self._total += _checked(file, name, tensors.get_slice(name), slots, self._home)
                    self._home[name] = file
        if missing := [name for name in slots if name not in self._home]:
            raise BadCheckpoint(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")

    def read(self, slots: dict[str, Slot]) -> None:
        """Fills these slots, file by file."""
        for file in dict.fromkeys(self._home[name] for name in slots):
            with opened(file) as tensors:
                for name in (name for name in slots if self._home[name] == file):
                    tensor = tensors.get_tensor(name)
                    slots[name].view.copy_(tensor)
                    self._done += tensor.nbytes
                    if self._progress and self._done <= self._total:
                        self._progress(self._done, self._total)

    def fill(self, layer: Layer) -> None:
        self.read({f"model.layers.{layer.index}.{name}": slot for name, slot in layer_slots(layer)})


def load_weights(model: Decoder, folder: Path, progress: Progress | None = None) -> None:
    """Fills a model that has all its tensors."""
    Checkpoint(model, folder, progress).read(decoder_slots(model))


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
    slots = outer_slots(model)
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        slots |= {f"model.layers.{index}.{name}": slot for name, slot in layer_slots(layer)}
    return slots


def outer_slots(model: Decoder) -> dict[str, Slot]:
    """Those that are of no layer."""
    slots = {"model.embed_tokens.weight": whole(model.embed), "model.norm.weight": whole(model.norm.weight)}
    if not model.config.tied:
        slots["lm_head.weight"] = whole(model.head.weight)
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


def random_weights(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Fills a model as if untrained, or one layer of it (`prefix`: its name in it).

    Each tensor has its own seed, so the shape of others changes nothing.
    """
    for name, tensor in module.named_parameters(prefix):
        if tensor.is_meta:
            continue  # it is hollow
        if "norm" in name:
            tensor.fill_(1)
        else:
            generator = torch.Generator(tensor.device).manual_seed(seed ^ zlib.crc32(name.encode()))
            tensor.normal_(0, 0.02, generator=generator)
