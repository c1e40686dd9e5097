"""Reads the header of a GGUF file: its metadata, and the type, shape and place of each tensor.

Reference: ggml, docs/gguf.md. Nothing in a file is trusted: every count, length and offset is compared with
the size of the file before anything is read or allocated.
"""

import math
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from engine.api.errors import BadCheckpoint, UnsupportedModel
from engine.gguf.kinds import NAMES, READABLE
from engine.gguf.parts import part_paths

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ITEMS = 1 << 24  # of an array: far above any vocabulary
_MOST_DIMENSIONS = 4
_LONGEST_NAME = 1 << 16
_ALIGNMENT = 32  # of the tensors, unless the metadata has another

# struct's codes for the types of metadata, by their numbers
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def is_gguf(path: Path) -> bool:
    """Whether a model's path is a GGUF file instead of a folder."""
    return path.suffix.lower() == SUFFIX and not path.is_dir()


class Array(NamedTuple):
    """An array in the metadata: where it is. `GgufFile.items` reads it."""

    kind: int
    length: int
    start: int


class GgufSpan(NamedTuple):
    """A tensor: its type, its shape (outputs first, as torch has it), and its bytes in a file."""

    kind: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    part: int = 0  # of a model in several files, the one that has it


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A parsed header. It is compared by identity, so that what is derived from it can be remembered."""

    path: Path  # of a model in several files, the first one
    metadata: dict[str, Any]  # numbers, strings, flags and `Array`s
    tensors: dict[str, GgufSpan]
    parts: tuple[Path, ...]  # all files

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def whole(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def value(self, key: str) -> Any:
        """Return a value as JSON has it, an array as a list; None if there is none."""
        value = self.metadata.get(key)
        return self.items(key) if isinstance(value, Array) else value

    def items(self, key: str) -> list[Any]:
        """Read an array; empty if there is none."""
        span = self.metadata.get(key)
        if not isinstance(span, Array):
            return []
        with _mapped(self.path) as data:
            scan = _Scan(self.path, data, span.start)
            if span.kind == _STRING:
                return [scan.string() for _ in range(span.length)]
            return scan.numbers(_NUMBERS[span.kind], span.length)

    def stop_ids(self) -> list[int]:
        """Return the tokens that end a reply."""
        ids = (self.whole(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return list(dict.fromkeys(id for id in ids if id is not None))

    def floats(self, name: str) -> list[float] | None:
        """Read a small tensor of floats; None if there is none."""
        if (span := self.tensors.get(name)) is None:
            return None
        if span.kind != "F32" or len(span.shape) != 1:
            raise BadCheckpoint(f"{self.path}: {name} is {span.kind} {list(span.shape)}, not a list of F32")
        with _mapped(self.parts[span.part]) as data:
            return _Scan(self.parts[span.part], data, span.start).numbers("f", span.shape[0])


Version = tuple[Path, int, int]  # a file, its size and its time


def read_header(path: Path) -> GgufFile:
    """Read the header of a model's file, or those of all its files. It is remembered until they change."""
    found = _read(*_version(path))
    if (count := found.metadata.get("split.count")) in (None, 0, 1):
        return found
    if type(count) is not int or count < 0:
        raise BadCheckpoint(f"{path}: split.count is {count!r}, not a number of files")
    return _joined(tuple(_version(part, count) for part in part_paths(path, count)))


def _version(path: Path, count: int = 1) -> Version:
    try:
        found = path.stat()
    except OSError as error:
        whole = f", one of the model's {count} parts," if count > 1 else ""
        raise BadCheckpoint(f"{path}{whole} cannot be read: {error.strerror}") from error
    return path, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=2)
def _joined(versions: tuple[Version, ...]) -> GgufFile:
    """Read all parts of a model."""
    parts, tensors = [_read(*version) for version in versions], dict[str, GgufSpan]()
    for number, part in enumerate(parts):
        _check_part(part, number, parts)
        for name, span in part.tensors.items():
            if name in tensors:
                other = parts[tensors[name].part].path.name
                raise BadCheckpoint(f"{part.path}: {name} is in {other} as well")
            tensors[name] = span._replace(part=number)
    if (count := parts[0].metadata["split.tensors.count"]) != len(tensors):
        raise BadCheckpoint(f"{parts[0].path}: its parts hold {len(tensors)} tensors, not {count!r}")
    return replace(parts[0], tensors=tensors, parts=tuple(part.path for part in parts))


def _check_part(part: GgufFile, number: int, parts: list[GgufFile]) -> None:
    """Raise unless a file is that part of the model."""
    for key, named in (("split.no", number), ("split.count", len(parts))):
        if (found := part.metadata.get(key)) != named:
            raise BadCheckpoint(f"{part.path}: {key} is {found!r}, and {named} by its name")
    found, first = (each.metadata.get("split.tensors.count") for each in (part, parts[0]))
    if found is None or found != first:
        what = f"split.tensors.count is {found!r} and {first!r}"
        raise BadCheckpoint(f"{part.path} and {parts[0].path.name} are parts of different models: {what}")


@lru_cache(maxsize=4)
def _read(path: Path, size: int, stamp: int) -> GgufFile:
    if size == 0:
        raise BadCheckpoint(f"{path} is empty, not a GGUF file")
    with _mapped(path) as data:
        scan = _Scan(path, data)
        tensors, pairs = scan.start()
        metadata = dict(scan.pairs(pairs))
        spans = dict(scan.tensors(tensors, metadata))
    return GgufFile(path, metadata, spans, (path,))


def _mapped(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise BadCheckpoint(f"{path} cannot be read: {reason}") from error


class _Scan:
    """Walks through a header."""

    def __init__(self, path: Path, data: mmap.mmap, at: int = 0) -> None:
        self._path, self._data, self._at = path, data, at
        self._size = len(data)

    def bad(self, what: str) -> BadCheckpoint:
        return BadCheckpoint(f"{self._path} is not a valid GGUF file: {what}")

    def numbers(self, code: str, count: int) -> list[Any]:
        """Read numbers of one type."""
        end = self._at + struct.calcsize(code) * count
        if end > self._size:
            raise self.bad("it is truncated")
        found = list(struct.unpack_from(f"<{count}{code}", self._data, self._at))
        self._at = end
        return found

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def count(self, what: str, least: int, most: int) -> int:
        """Read a count of things that take at least `least` bytes each."""
        found: int = self.number("Q")
        if found > most or found * least > self._size - self._at:
            raise self.bad(f"it has {found:,} {what}, more than fit")
        return found

    def string(self) -> str:
        return self._decoded(self.count("characters in a string", 1, self._size))

    def name(self) -> str:
        return self._decoded(self.count("characters in a name", 1, _LONGEST_NAME))

    def _decoded(self, length: int) -> str:
        text = self._data[self._at : self._at + length]
        self._at += length
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self.bad(f"a string is not UTF-8 text: {error}") from error

    def start(self) -> tuple[int, int]:
        """Return the numbers of tensors and of metadata."""
        if self._data[:4] != _MAGIC:
            raise self.bad("it does not start with GGUF")
        self._at = 4
        version: int = self.number("I")
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise UnsupportedModel(
                    f"{self._path} is big-endian; only little-endian GGUF files can be read"
                )
            raise UnsupportedModel(f"{self._path} is GGUF version {version}; only 2 and 3 can be read")
        tensors = self.count("tensors", 24, _MOST_ITEMS)
        return tensors, self.count("metadata", 13, _MOST_ITEMS)

    def pairs(self, count: int) -> Iterator[tuple[str, Any]]:
        for _ in range(count):
            name = self.name()
            yield name, self._value(self.number("I"), name)

    def _value(self, kind: int, name: str) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(name)
        raise self.bad(f"{name} has the unknown type {kind}")

    def _array(self, name: str) -> Array:
        """Skip an array."""
        kind: int = self.number("I")
        if kind not in _NUMBERS and kind != _STRING:
            raise self.bad(f"{name} is an array of type {kind}, which is not supported")
        width = 8 if kind == _STRING else struct.calcsize(_NUMBERS[kind])
        count = self.count(f"items in {name}", width, _MOST_ITEMS)
        start = self._at
        if kind == _STRING:
            for _ in range(count):
                length = self.count(f"characters in an item of {name}", 1, self._size)
                self._at += length
        else:
            self._at += count * width
        return Array(kind, count, start)

    def tensors(self, count: int, metadata: dict[str, Any]) -> Iterator[tuple[str, GgufSpan]]:
        align = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(align, int) or not 0 < align <= 1 << 20 or align & (align - 1):
            raise self.bad(f"general.alignment is {align!r}, not a power of two")
        found: dict[str, GgufSpan] = {}
        for _ in range(count):
            name = self.name()
            if name in found:
                raise self.bad(f"it has two tensors {name}")
            found[name] = self._tensor(name)
        start = -(-self._at // align) * align
        for name, span in found.items():
            if span.start % align or start + span.start + span.nbytes > self._size:
                raise self.bad(f"{name} is outside of the file; it may be truncated")
            yield name, span._replace(start=start + span.start)

    def _tensor(self, name: str) -> GgufSpan:
        dimensions: int = self.number("I")
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise self.bad(f"{name} has {dimensions} dimensions")
        shape = tuple(reversed(self.numbers("Q", dimensions)))
        kind: int = self.number("I")
        label = NAMES.get(kind, f"of the unknown type {kind}")
        if label not in READABLE:
            raise UnsupportedModel(f"{self._path}: {name} is {label}; only {', '.join(READABLE)} can be read")
        blocks, numbers = READABLE[label], math.prod(shape)
        if not 0 < numbers <= self._size * blocks.numbers or shape[-1] % blocks.numbers:
            raise self.bad(f"{name} is {label} {list(shape)}, which is impossible")
        return GgufSpan(label, shape, self.number("Q"), numbers // blocks.numbers * blocks.nbytes)
