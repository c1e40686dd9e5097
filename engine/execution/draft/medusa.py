"""Medusa heads, read from a folder. Head k guesses the token k + 2 places after a hidden state's own."""

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.places import expanded
from engine.execution.draft.files import host_of, read_exactly, weights_in
from engine.models.checkpoint import opened
from engine.models.decoder import Decoder
from engine.models.fields import MOST_LAYERS, Fields
from engine.models.find import CONFIG

NAME = "Medusa heads"
WEIGHTS = "medusa_lm_head.safetensors"
HEADS = "medusa_num_heads"  # the field of config.json that only such folders have
_MOST_HEADS = 16


class MedusaHeads:
    """All heads at once: the weights of equal layers are one tensor."""

    def __init__(self, blocks: Sequence[tuple[Tensor, Tensor]], out: Tensor | None, model: Decoder) -> None:
        """`blocks`: of each layer [heads, width, width] and [heads, 1, width]. `out`: None: the model's."""
        self._blocks = tuple((weight.mT.contiguous(), bias) for weight, bias in blocks)
        self._out = None if out is None else out.mT.contiguous()
        self._model, self.count = model, len(blocks[0][0])

    @property
    def blank(self) -> Tensor:
        """As a hidden state."""
        return self._model.embed[0]

    @property
    def own_bytes(self) -> int:
        own = [*chain.from_iterable(self._blocks), *([] if self._out is None else [self._out])]
        return sum(each.nbytes for each in own)

    def logits(self, hidden: Tensor, heads: int) -> Tensor:
        """[N, width] after the model's last norm -> [heads, N, vocab] of the first heads, in float32."""
        x = hidden.expand(heads, -1, -1)
        for weight, bias in self._blocks:
            x = x + F.silu(torch.baddbmm(bias[:heads], x, weight[:heads]))
        if self._out is not None:
            return torch.bmm(x, self._out[:heads]).float()
        return self._model.logits(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def medusa_folder(name: str) -> Path | None:
    """Return the folder if it holds Medusa heads."""
    folder = expanded(name)
    config = folder / CONFIG
    return folder if os.path.isfile(config) and Fields.read(config).given(HEADS) else None


def read_medusa(folder: Path, model: object, device: torch.device, ranks: int = 1) -> MedusaHeads:
    """Read heads for this model. Raises if they do not fit it, or cannot run here.

    A file without output matrices has heads that share the model's.
    """
    fields = Fields.read(folder / CONFIG)
    heads = range(fields.whole(HEADS, high=_MOST_HEADS))
    layers = range(fields.whole("medusa_num_layers", 1, high=MOST_LAYERS))
    decoder = host_of(NAME, model, device, ranks)
    file = weights_in(folder, WEIGHTS)
    width, dtype = decoder.config.hidden, decoder.embed.dtype
    shapes: dict[str, tuple[int, ...]] = {}
    for head in heads:
        for layer in layers:
            shapes[f"{head}.{layer}.linear.weight"] = (width, width)
            shapes[f"{head}.{layer}.linear.bias"] = (width,)
    outs = {f"{head}.{len(layers)}.weight": (decoder.config.vocab, width) for head in heads}
    with opened(file) as tensors:
        shared = outs.keys().isdisjoint(tensors.keys())
    found = read_exactly(file, shapes if shared else shapes | outs, dtype, NAME, device=device)
    blocks = [
        (
            torch.stack([found[f"{head}.{layer}.linear.weight"] for head in heads]),
            torch.stack([found[f"{head}.{layer}.linear.bias"] for head in heads])[:, None],
        )
        for layer in layers
    ]
    return MedusaHeads(blocks, None if shared else torch.stack([found[name] for name in outs]), decoder)
