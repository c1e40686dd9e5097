"""A model in several GGUF files: name-00001-of-00003.gguf and so on, as llama-gguf-split writes them.

The first part has the metadata of the model. Each part lists the tensors that it holds.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from engine.api.errors import BadCheckpoint

_PART = re.compile(r"(?P<name>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)


def first_part(path: Path) -> Path:
    """Return the file that a model is known by: of a split one, the first."""
    found = _PART.fullmatch(path.name)
    return path if found is None else _part(path, found, 1)


def model_name(path: Path) -> str:
    """Return the name of the model in a GGUF file."""
    found = _PART.fullmatch(path.name)
    return path.stem if found is None else found["name"]


def part_paths(path: Path, count: int) -> Sequence[Path]:
    """Return the paths of all parts, given one of them. Raises if it has the name of no part."""
    found = _PART.fullmatch(path.name)
    if found is None or int(found["count"]) != count:
        raise BadCheckpoint(
            f"{path} is one of {count} parts of a model, so its name must end with -00001-of-{count:05}.gguf "
            "or the number of another part"
        )
    return [_part(path, found, number) for number in range(1, count + 1)]


def _part(path: Path, found: re.Match[str], number: int) -> Path:
    return path.with_name(f"{found['name']}-{number:05}-of-{found['count']}{found['suffix']}")
