"""A hash of everything that determines the keys and values a model computes: its files, and the code."""

import inspect
import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch

import engine.attention
import engine.kernels
import engine.kv
import engine.models
import engine.quant
from engine.api.config import EngineConfig, ModelPlace
from engine.api.events import log
from engine.api.places import DiskRoom
from engine.models.base import LanguageModel
from engine.models.checkpoint import shards

PIECE = 2**26  # bytes hashed at a time; hashing runs without the interpreter's lock
_THREADS = 4
_REMEMBERED = 1000  # files
_CODE = (engine.attention, engine.kernels, engine.kv, engine.models, engine.quant)


def begin_hash(config: EngineConfig, place: ModelPlace) -> Future[bytes] | None:
    """Start to hash the model's files, which name its blocks for other engines. None: there are none."""
    if config.kv_disk is None and config.exchange is None:
        return None
    thread = ThreadPoolExecutor(1, "hash")
    try:
        if config.kv_disk is None:  # the others are on this machine, and run now
            return thread.submit(files_stamp, place.folder, weights=not config.dummy_weights)
        memo = DiskRoom.parse(config.kv_disk).folder / "hashes.json"
        return thread.submit(files_hash, place.folder, weights=not config.dummy_weights, memo=memo)
    finally:
        thread.shutdown(wait=False)


def files_hash(folder: Path, *, weights: bool, memo: Path) -> bytes:
    """Hash the contents of a model's configuration and weights. `weights`: False if they are random ones.

    `memo`: a file with the hashes of files that have not changed since an earlier start.
    """
    files = sorted([*(shards(folder) if weights else ()), *folder.glob("*.json")])
    known = _remembered(memo)
    stamps = {file: _stamp(file) for file in files}
    found = {stamp: known.get(stamp) or file_hash(file) for file, stamp in stamps.items()}
    if not found.keys() <= known.keys():
        _remember(memo, known | found)
    return _joined(f"{file.name}:{found[stamp]}".encode() for file, stamp in stamps.items())


def files_stamp(folder: Path, *, weights: bool) -> bytes:
    """The same without reading them: what changes when one of the files does, on this machine."""
    files = sorted([*(shards(folder) if weights else ()), *folder.glob("*.json")])
    return _joined(_stamp(file).encode() for file in files)


def file_hash(file: Path) -> str:
    with ThreadPoolExecutor(_THREADS, "hash") as threads:
        return _joined(threads.map(partial(_hashed, file), range(0, file.stat().st_size, PIECE))).hex()


def _stamp(file: Path) -> str:
    """What changes when a file does."""
    found = file.stat()
    return f"{file.resolve()} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _remembered(memo: Path) -> dict[str, str]:
    try:
        found = json.loads(memo.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(memo: Path, hashes: dict[str, str]) -> None:
    newest = dict([*hashes.items()][-_REMEMBERED:])
    try:
        memo.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = memo.with_suffix(f".{os.getpid()}")
        own.touch(mode=0o600)
        own.write_text(json.dumps(newest))
        own.replace(memo)
    except OSError as error:  # the disk tier has the same folder, and says so
        log.info("the hashes of the model's files are not remembered: %s", error)


def model_identity(files: bytes, model: LanguageModel, *settings: object) -> bytes:
    """Combine the hash of a model's files with the code that runs it and with settings of the engine."""
    return _joined((files, _code_hash(model), torch.__version__.encode(), repr(settings).encode()))


def _code_hash(model: LanguageModel) -> bytes:
    """Hash the source files of all parts of a model, and of what they call."""
    modules = {type(each).__module__ for each in (model, *model.modules())}
    parts = {Path(inspect.getfile(sys.modules[name])) for name in modules}
    own = {file for package in _CODE for file in Path(package.__path__[0]).rglob("*.py")}
    return _joined(file.read_bytes() for file in sorted(own | parts))


def _hashed(file: Path, at: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(at)
        return sha256(opened.read(PIECE)).digest()


def _joined(parts: Iterable[bytes]) -> bytes:
    """Hash parts so that their boundaries matter."""
    whole = sha256()
    for part in parts:
        whole.update(sha256(part).digest())
    return whole.digest()
