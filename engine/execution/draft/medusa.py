"""Medusa heads, read from a folder. Head k guesses the token k + 2 places after a hidden state's own."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.places import expanded
from engine.execution.draft.files import host_of, read_exactly, weights_in
from engine.models.fields import MOST_LAYERS, Fields
from engine.models.find import CONFIG

NAME = "Medusa heads"
WEIGHTS = "medusa_lm_head.safetensors"
HEADS = "medusa_num_heads"  # the field of config.json that only such folders have
_MOST_HEADS = 16


@dataclass(frozen=True, slots=True)
class MedusaHead:
    blocks: tuple[tuple[Tensor, Tensor], ...]  # the weight and the bias of each residual block
    out: Tensor  # [vocab, hidden]

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] after the model's last norm -> [N, vocab] in float32."""
        for weight, bias in self.blocks:
            hidden = hidden + F.silu(F.linear(hidden, weight, bias))
        return F.linear(hidden, self.out).float()


def medusa_folder(name: str) -> Path | None:
    """Return the folder if it holds Medusa heads."""
    folder = expanded(name)
    config = folder / CONFIG
    return folder if config.is_file() and Fields.read(config).given(HEADS) else None


def read_medusa(folder: Path, model: object, device: torch.device, ranks: int = 1) -> tuple[MedusaHead, ...]:
    """Read heads for this model. Raises if they do not fit it, or cannot run here."""
    fields = Fields.read(folder / CONFIG)
    heads = fields.whole(HEADS, high=_MOST_HEADS)
    layers = fields.whole("medusa_num_layers", 1, high=MOST_LAYERS)
    decoder = host_of(NAME, model, device, ranks)
    file = weights_in(folder, WEIGHTS)
    width, dtype = decoder.config.hidden, decoder.embed.dtype
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for layer in range(layers):
            shapes[f"{head}.{layer}.linear.weight"] = (width, width)
            shapes[f"{head}.{layer}.linear.bias"] = (width,)
        shapes[f"{head}.{layers}.weight"] = (decoder.config.vocab, width)
    found = read_exactly(file, shapes, dtype, NAME)
    return tuple(
        MedusaHead(
            tuple(
                (found[f"{head}.{layer}.linear.weight"], found[f"{head}.{layer}.linear.bias"])
                for layer in range(layers)
            ),
            found[f"{head}.{layers}.weight"],
        )
        for head in range(heads)
    )
