"""Reads heads that draft from a folder. Whatever does not fit is refused by name."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from engine.api.errors import BadCheckpoint, BadInput
from engine.models.checkpoint import FLOATS, SINGLE, Header, check, opened, refuse_kinds
from engine.models.decoder import Decoder

ON_GPUS = True  # False: heads are refused there


def host_of(heads: str, model: object, device: torch.device, ranks: int) -> Decoder:
    """Return the model. Raises if such heads cannot run beside it."""
    if ranks > 1:
        raise BadInput(f"draft: {heads} run in one process only; leave tp and pp at 1")
    if device.type != "cpu" and not ON_GPUS:
        raise BadInput(f"draft: {heads} run on CPUs only so far; add --device cpu")
    if not isinstance(model, Decoder):
        raise BadInput(f"draft: {heads} need a model that runs natively")
    return model


def weights_in(folder: Path, *names: str) -> Path:
    """Return the first of these files, or the usual one."""
    names = (*names, SINGLE)
    if (file := next((folder / name for name in names if (folder / name).is_file()), None)) is not None:
        return file
    refuse_kinds(sorted(folder.glob("*")))
    raise BadCheckpoint(f"{folder} holds no {' or '.join(names)}")


def read_exactly(
    file: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    heads: str,
    beside: Collection[str] = (),
    device: str | torch.device = "cpu",
) -> dict[str, Tensor]:
    """Read exactly these tensors. All headers are checked before anything is read.

    `beside`: tensors that may be there, too.
    """
    with opened(file) as tensors:
        names = set(tensors.keys())
        if wrong := sorted((names - {*beside}).symmetric_difference(shapes)):
            what = "is unknown" if wrong[0] in names else "is missing"
            raise BadCheckpoint(f"{file}: {wrong[0][:200]} {what} in {heads} of this config")
        for name, shape in shapes.items():
            header = tensors.get_slice(name)
            check(name, Header(file, header.get_dtype(), tuple(header.get_shape())), FLOATS, [shape])
        found: dict[str, Tensor] = {name: tensors.get_tensor(name).to(device, dtype) for name in shapes}
    for name, tensor in found.items():
        if not torch.isfinite(tensor).all():
            raise BadCheckpoint(f"{file}: {name} holds numbers that are not finite")
    return found
