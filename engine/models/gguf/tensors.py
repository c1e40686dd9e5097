"""The tensors of a GGUF file under the names of a checkpoint, read one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from engine.api.errors import BadCheckpoint
from engine.gguf.header import GgufFile, GgufSpan, read_header
from engine.models.families import Family, named
from engine.models.gguf.architectures import NAMES, OUTER, architecture_of
from engine.models.kinds.experts import MOST_EXPERTS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from engine.quant.grouped import GroupedWeight

_CONFIG = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # see config.py
_NAME = re.compile(r"(?:blk\.(\d{1,4})\.)?(\w+)\.(weight|bias)", re.ASCII)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor, and how llama.cpp changed it."""

    span: GgufSpan
    heads: int = 0  # the rows of this many heads are reordered; 0: they are not
    raised: bool = False  # 1 was added to all numbers

    def expert(self, index: int) -> GgufTensor:
        """Return one expert's part of the tensor of all."""
        count, *shape = self.span.shape
        size = self.span.nbytes // count
        start = self.span.start + index * size
        return replace(self, span=self.span._replace(shape=tuple(shape), start=start, nbytes=size))


def gguf_tensors(path: Path) -> Mapping[str, GgufTensor]:
    """Return the tensors by their names in a checkpoint of the family. Unknown ones keep their names."""
    return _tensors(read_header(path))


@lru_cache(maxsize=2)
def _tensors(file: GgufFile) -> Mapping[str, GgufTensor]:
    prefix, made_of = architecture_of(file)
    family = named(made_of.family)
    assert family is not None, "the table names built-in families"
    heads = {
        key: (file.whole(f"{prefix}.attention.{count}") or 0) if made_of.permuted else 0
        for key, count in (("attn_q", "head_count"), ("attn_k", "head_count_kv"))
    }
    found: dict[str, GgufTensor] = {}
    for name, span in file.tensors.items():
        if name in _CONFIG:
            continue
        parsed = _NAME.fullmatch(name)
        key = parsed[2] if parsed else ""
        raised = made_of.offset_norms and key.endswith("norm")
        tensor = GgufTensor(span, heads=heads.get(key, 0), raised=raised)
        for label, part in _named(file, family, name, tensor):
            if label in found:
                raise BadCheckpoint(f"{file.path}: {name} and another tensor are both {label}")
            found[label] = part
    return found


def _named(file: GgufFile, family: Family, name: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """Yield a tensor under its name in a checkpoint; each expert has its own there."""
    parsed = _NAME.fullmatch(name)
    label = None if parsed is None else _labels(family, parsed[1] is not None).get(parsed[2])
    if parsed is None or label is None:
        yield name, tensor
        return
    block = "" if parsed[1] is None else f"{family.names['block'].format(int(parsed[1]))}."
    shape = tensor.span.shape
    if "{}" in label:
        if len(shape) != 3 or shape[0] > MOST_EXPERTS:
            raise BadCheckpoint(
                f"{file.path}: {name} is {list(shape)}, which is not a matrix for each expert"
            )
        for index in range(shape[0]):
            yield f"{block}{label.format(index)}.{parsed[3]}", tensor.expert(index)
        return
    if label == family.names.get("shared.scale") and len(shape) == 1:
        tensor = replace(tensor, span=tensor.span._replace(shape=(1, *shape)))
    yield f"{block}{label}.{parsed[3]}", tensor


def _labels(family: Family, inside: bool) -> dict[str, str]:
    """Return the family's names by those in the file, of what is inside of blocks or outside."""
    return {
        name: family.names[key]
        for key, name in NAMES.items()
        if key in family.names and (key in OUTER) != inside
    }


class GgufTensors:
    """The tensors of a model; its files are opened as they are needed."""

    def __init__(self, path: Path, opened: ExitStack) -> None:
        self._parts, self._tensors = read_header(path).parts, gguf_tensors(path)
        self._opened, self._files = opened, dict[int, BufferedReader]()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def get_tensor(self, name: str) -> Tensor:
        """Read a tensor as exactly as float32 can hold it."""
        import torch

        return self.floats(name, torch.float32, torch.device("cpu"))

    def floats(self, name: str, dtype: torch.dtype, device: torch.device, rows: int | None = None) -> Tensor:
        """Read a tensor, or its first rows. What is quantized becomes `dtype`."""
        from engine.quant.gguf import dequantized

        tensor = self._tensors[name]
        found = dequantized(tensor.span.kind, self._raw(tensor)[:rows].to(device), dtype)
        if tensor.raised:
            found = (found.float() - 1).to(found.dtype)
        return found if len(tensor.span.shape) > 1 else found.flatten()

    def four_bits(self, name: str, device: torch.device) -> GroupedWeight:
        """Read a weight of four bits without changing its numbers."""
        from engine.quant.gguf import grouped

        tensor = self._tensors[name]
        return grouped(tensor.span.kind, self._raw(tensor).to(device))

    def _raw(self, tensor: GgufTensor) -> Tensor:
        """Return [rows, bytes of a row], in the order of the family's checkpoints."""
        import torch

        span = tensor.span
        raw, file, path = (
            torch.empty(span.nbytes, dtype=torch.uint8),
            self._file(span),
            self._parts[span.part],
        )
        file.seek(span.start)
        if file.readinto(raw.numpy().data) != span.nbytes:
            raise BadCheckpoint(f"{path} is truncated")
        rows = raw.view(span.shape[0] if len(span.shape) > 1 or tensor.heads else 1, -1)
        if not tensor.heads:
            return rows
        if len(rows) % (2 * tensor.heads):
            raise BadCheckpoint(f"{path}: {span.shape[0]} rows cannot belong to {tensor.heads} heads")
        return rows.view(tensor.heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)

    def _file(self, span: GgufSpan) -> BufferedReader:
        if span.part not in self._files:
            self._files[span.part] = self._opened.enter_context(self._parts[span.part].open("rb"))
        return self._files[span.part]


@contextmanager
def opened_gguf(path: Path) -> Iterator[GgufTensors]:
    try:
        with ExitStack() as opened:
            yield GgufTensors(path, opened)
    except OSError as error:
        raise BadCheckpoint(f"{error.filename or path} cannot be read: {error.strerror}") from error
