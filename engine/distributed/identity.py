"""What all ranks must have in common: the code, the libraries, the model's files, the configuration.

Each also reports which GPUs it sees, since the first rank has chosen those and their order.
"""

import json
import platform
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from engine.api import wire
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import EngineError
from engine.models.checkpoint import headers
from engine.models.config_json import config_fields

Identity = dict[str, str]


class Gpu(NamedTuple):
    """A GPU as a process sees it, whatever number it has there."""

    uuid: str
    name: str


def visible_gpus() -> list[Gpu]:
    """The GPUs of this process, by their numbers."""
    every = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [Gpu(f"GPU-{each.uuid}", each.name) for each in every]


def identity(config: EngineConfig, place: ModelPlace, gpus: Sequence[Gpu] = ()) -> Identity:
    """`gpus`: that this process sees, if its ranks run on GPUs."""
    return order_of(gpus) | {
        "engine": _digest(*(each.read_bytes() for each in sorted(_code()))),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "model": _digest(_configured(place.folder), *_weights(config, place.folder)),
        "configuration": _digest(json.dumps(wire.config_to_json(config), sort_keys=True).encode()),
    }


def order_of(gpus: Sequence[Gpu]) -> Identity:
    """The part of an identity that names the GPUs."""
    return {"order of GPUs": ", ".join(f"{each.uuid} ({each.name})" for each in gpus) or "no GPU"}


def kind_of(device: torch.device) -> Identity:
    """The part of an identity that tells GPUs from CPUs."""
    return {"kind of device": device.type}


def check_same(rank: int, own: Identity, other: Identity) -> None:
    """Raise if rank `rank` differs from rank 0, or has other GPUs: its sums would be wrong."""
    for name, value in own.items():
        if (found := other.get(name)) != value:
            raise EngineError(f"rank {rank} has a different {name} than rank 0: {found} instead of {value}")


def _code() -> list[Path]:
    return list(Path(__file__).resolve().parents[1].rglob("*.py"))


def _configured(folder: Path) -> bytes:
    return json.dumps(config_fields(folder).values, sort_keys=True).encode()


def _weights(config: EngineConfig, folder: Path) -> list[bytes]:
    """The names, types and shapes of all tensors, and the sizes of their files."""
    if config.dummy_weights:
        return []
    found = sorted(headers(folder).items())
    return [repr((name, each.file.stat().st_size, each.kind, each.shape)).encode() for name, each in found]


def _digest(*parts: bytes) -> str:
    whole = sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:16]
