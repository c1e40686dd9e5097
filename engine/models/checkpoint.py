"""The files of a checkpoint: safetensors files, or one GGUF file, with errors that name the file."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from engine.api.errors import BadCheckpoint
from engine.api.events import log
from engine.gguf.header import SUFFIX, is_gguf, read_header
from engine.gguf.kinds import READABLE
from engine.models.gguf.tensors import GgufTensors, gguf_tensors, opened_gguf
from engine.models.unmapped import Unmapped, unmapped

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_POINTER = b"version https://git-lfs"  # start of a git-lfs pointer, which replaces a file that is not fetched
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # loadable dtypes
TYPES = FLOATS | {
    "I64": "int64",
    "I32": "int32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "U8": "uint8",
    "I8": "int8",
}  # all dtypes that are read
# Bytes of a number of each dtype.
WIDTHS = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
}


class Header(NamedTuple):
    """A tensor's header, available before the tensor is read."""

    file: Path
    kind: str  # the dtype's name in safetensors, or the type's in GGUF
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        numbers, nbytes = READABLE.get(self.kind) or (1, WIDTHS[self.kind])
        return math.prod(self.shape) // numbers * nbytes

    @property
    def loadable(self) -> Iterable[str]:
        """The dtypes of weights that such a file may hold."""
        return READABLE if self.file.suffix.lower() == SUFFIX else FLOATS


def has_weights(folder: Path) -> bool:
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def shards(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, or the GGUF files. No other format is ever opened."""
    if is_gguf(folder) and folder.is_file():
        return [*read_header(folder).parts]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        return _indexed(folder / INDEX)
    refuse_kinds(sorted(folder.glob("*")))
    raise BadCheckpoint(f"{folder} holds neither {SINGLE} nor {INDEX}")


def refuse_kinds(files: Iterable[Path]) -> None:
    """Raise if there are weights in a format that is never opened, with advice."""
    for file in files:
        if file.suffix in PICKLES:
            raise BadCheckpoint(
                f"{file} is a pickle, which can run any code when opened, so it is refused; convert it "
                "with transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
            )
        if is_gguf(file):
            raise BadCheckpoint(
                f"{file} is a GGUF file, which is a whole model: specify the file, not its folder"
            )


def _indexed(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{index} is not an index of shards: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise BadCheckpoint(f"{index} names {name!r}, which is not a safetensors file in the same folder")
        if not (index.parent / name).is_file():
            raise BadCheckpoint(f"{index} names {name}, which does not exist")
    return [index.parent / name for name in sorted(names)]


@contextmanager
def opened(file: Path, framework: str = "pt") -> Iterator[Any]:
    if is_gguf(file):
        with opened_gguf(file) as whole:
            yield whole
        return
    try:
        with _reader(file, framework) as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{file} {_trouble(file, error)}") from error


def _reader(file: Path, framework: str) -> AbstractContextManager[Any]:
    """The library maps twice the file's size in address space; if that fails, read without mapping."""
    try:
        mapped: AbstractContextManager[Any] = safe_open(file, framework=framework)
    except (MemoryError, RuntimeError) as error:
        log.info("reading %s without mapping it: %s", file, error)
        return unmapped(file, TYPES)
    return mapped


def _trouble(file: Path, error: Exception) -> str:
    """Describe why a file cannot be opened; the library reports a missing file in every case."""
    try:
        with open(file, "rb") as found:
            start = found.read(len(_POINTER))
    except OSError as why:
        return f"cannot be read: {why.strerror}"
    if start == _POINTER:
        return "is a git-lfs pointer, not the weights; run git lfs pull in its folder"
    return f"is corrupt or truncated: {error}"


def state(file: Path) -> tuple[int, int] | None:
    """Identify a file's version, to detect that it was replaced. None if the file does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def headers(folder: Path) -> dict[str, Header]:
    """Return the header of every tensor in a folder or a GGUF model, by name."""
    if is_gguf(folder):
        parts = read_header(folder).parts
        return {
            name: Header(parts[tensor.span.part], tensor.span.kind, tensor.span.shape)
            for name, tensor in gguf_tensors(folder).items()
        }
    found: dict[str, Header] = {}
    for file in shards(folder):
        with opened(file) as tensors:
            for name in tensors.keys():
                if name in found:
                    raise BadCheckpoint(f"{file}: {name} is in {found[name].file.name} as well")
                header = tensors.get_slice(name)
                found[name] = Header(file, header.get_dtype(), tuple(header.get_shape()))
    return found


def sliced(tensors: Any, name: str, span: tuple[slice, ...]) -> Any:
    """Read part of a tensor from an open file."""
    if isinstance(tensors, Unmapped | GgufTensors):
        return tensors.get_tensor(name)[span]
    return tensors.get_slice(name)[span]


def check(name: str, header: Header, kinds: Iterable[str], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise unless the tensor has one of these dtypes and shapes."""
    if header.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise BadCheckpoint(f"{header.file}: {name} is {list(header.shape)}, the config requires {expected}")
    if header.kind not in kinds:
        raise BadCheckpoint(
            f"{header.file}: {name} holds {header.kind}; only {', '.join(kinds)} can be loaded"
        )


def refuse_missing(folder: Path, names: Sequence[str]) -> None:
    """Raise if the folder's files lack tensors."""
    if len(names) == 1:
        raise BadCheckpoint(f"{folder}: {names[0]} is missing")
    if names:
        raise BadCheckpoint(f"{folder}: {len(names):,} tensors are missing, the first is {names[0]}")


def stored_dtype(folder: Path) -> str:
    """Return the dtype of the first float tensor, for configs without one."""
    with opened(shards(folder)[0], framework="np") as tensors:  # headers need no torch
        kinds = (tensors.get_slice(name).get_dtype() for name in tensors.keys())
        return next((FLOATS[kind] for kind in kinds if kind in FLOATS), "float32")
