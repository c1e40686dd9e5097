"""What all ranks must have in common: the code, the libraries, the model's files, the configuration."""

import json
import platform
from hashlib import sha256
from pathlib import Path

import torch

from engine.api import wire
from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import EngineError
from engine.models.checkpoint import headers
from engine.models.config_json import config_fields

Identity = dict[str, str]


def identity(config: EngineConfig, place: ModelPlace) -> Identity:
    return {
        "engine": _digest(*(each.read_bytes() for each in sorted(_code()))),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "model": _digest(_configured(place.folder), *_weights(config, place.folder)),
        "configuration": _digest(json.dumps(wire.config_to_json(config), sort_keys=True).encode()),
    }


def check_same(rank: int, own: Identity, other: Identity) -> None:
    """Raise if rank `rank` differs from rank 0, which would make its sums wrong."""
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
