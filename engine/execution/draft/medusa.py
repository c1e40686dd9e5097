"""Medusa heads, read from a folder. Head k guesses the token k + 2 places after a hidden state's own."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.errors import BadCheckpoint, BadInput
from engine.models.checkpoint import FLOATS, SINGLE, Header, check, opened, refuse_kinds
from engine.models.decoder import Decoder
from engine.models.fields import MOST_LAYERS, Fields
from engine.models.find import CONFIG

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
    folder = Path(name).expanduser()
    config = folder / CONFIG
    return folder if config.is_file() and Fields.read(config).given(HEADS) else None


def read_medusa(folder: Path, model: object, device: torch.device, ranks: int = 1) -> tuple[MedusaHead, ...]:
    """Read heads for this model. Raises if they do not fit it, or cannot run here."""
    fields = Fields.read(folder / CONFIG)
    heads = fields.whole(HEADS, high=_MOST_HEADS)
    layers = fields.whole("medusa_num_layers", 1, high=MOST_LAYERS)
    if ranks > 1:
        raise BadInput("draft: Medusa heads run in one process only; leave tp and pp at 1")
    if device.type != "cpu":
        raise BadInput("draft: Medusa heads run on CPUs only so far; add --device cpu")
    if not isinstance(model, Decoder):
        raise BadInput("draft: Medusa heads need a model that runs natively")
    file = next((folder / name for name in (WEIGHTS, SINGLE) if (folder / name).is_file()), None)
    if file is None:
        refuse_kinds(sorted(folder.glob("*")))
        raise BadCheckpoint(f"{folder} holds neither {WEIGHTS} nor {SINGLE}")
    width, dtype = model.config.hidden, model.embed.dtype
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for layer in range(layers):
            shapes[f"{head}.{layer}.linear.weight"] = (width, width)
            shapes[f"{head}.{layer}.linear.bias"] = (width,)
        shapes[f"{head}.{layers}.weight"] = (model.config.vocab, width)
    found = _tensors(file, shapes, dtype)
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


def _tensors(file: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, Tensor]:
    """Read exactly these tensors. All headers are checked before anything is read."""
    with opened(file) as tensors:
        names = set(tensors.keys())
        if wrong := sorted(names.symmetric_difference(shapes)):
            what = "is unknown" if wrong[0] in names else "is missing"
            raise BadCheckpoint(f"{file}: {wrong[0][:200]} {what} in Medusa heads of this config")
        for name, shape in shapes.items():
            header = tensors.get_slice(name)
            check(name, Header(file, header.get_dtype(), tuple(header.get_shape())), FLOATS, [shape])
        found: dict[str, Tensor] = {name: tensors.get_tensor(name).to(dtype) for name in shapes}
    for name, tensor in found.items():
        if not torch.isfinite(tensor).all():
            raise BadCheckpoint(f"{file}: {name} holds numbers that are not finite")
    return found
