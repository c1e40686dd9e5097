"""A hash of everything that determines the keys and values a model computes: its files, and the code."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import torch

import engine.attention
import engine.kernels
import engine.kv
import engine.quant
from engine.models.base import LanguageModel
from engine.models.checkpoint import shards

_PIECE = 2**26  # bytes hashed at a time; hashing runs without the interpreter's lock
_THREADS = 4
_CODE = (engine.attention, engine.kernels, engine.kv, engine.quant)


def files_hash(folder: Path, *, weights: bool) -> bytes:
    """Hash the contents of a model's configuration and weights. `weights`: False if they are random ones."""
    files = sorted([*(shards(folder) if weights else ()), *folder.glob("*.json")])
    pieces = [(file, at) for file in files for at in _starts(file)]
    with ThreadPoolExecutor(_THREADS, "hash") as threads:
        return _joined(threads.map(lambda piece: _hashed(*piece), pieces))


def model_identity(files: bytes, model: LanguageModel, *settings: object) -> bytes:
    """Combine the hash of a model's files with the code that runs it and with settings of the engine."""
    return _joined((files, _code_hash(model), torch.__version__.encode(), repr(settings).encode()))


def _code_hash(model: LanguageModel) -> bytes:
    """Hash the source files of all parts of a model, and of what they call."""
    modules = {type(each).__module__ for each in (model, *model.modules())}
    parts = {Path(inspect.getfile(sys.modules[name])) for name in modules}
    own = {file for package in _CODE for file in Path(package.__path__[0]).rglob("*.py")}
    return _joined(file.read_bytes() for file in sorted(own | parts))


def _starts(file: Path) -> Iterator[int]:
    yield from range(0, file.stat().st_size, _PIECE)


def _hashed(file: Path, at: int) -> bytes:
    digest = sha256(f"{file.name}:{at}:".encode())
    with file.open("rb") as opened:
        opened.seek(at)
        digest.update(opened.read(_PIECE))
    return digest.digest()


def _joined(parts: Iterable[bytes]) -> bytes:
    """Hash parts so that their boundaries matter."""
    whole = sha256()
    for part in parts:
        whole.update(sha256(part).digest())
    return whole.digest()
