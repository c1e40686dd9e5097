"""Reads an adapter's folder. Everything in it is checked before it is used."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from engine.api.errors import BadCheckpoint
from engine.models.adapters.products import LowRank, LowRanks, ProductKey
from engine.models.adapters.settings import WEIGHTS, LoraSettings, read_settings
from engine.models.adapters.targets import AdapterTarget
from engine.models.checkpoint import FLOATS, Header, check, opened

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")


class AdapterPart(NamedTuple):
    """What an adapter has for one module of a product, in the order of their ranks."""

    first: int  # of its outputs in the product
    outputs: int
    rank: int


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter in main memory, ready for a device."""

    folder: Path
    products: LowRanks
    parts: Mapping[ProductKey, tuple[AdapterPart, ...]]  # of each product
    rank: int  # the largest of any module
    digest: bytes  # of everything that it computes with

    @property
    def nbytes(self) -> int:
        return sum(half.nbytes for pair in self.products.values() for half in pair)

    @property
    def operations(self) -> int:
        """Those of a token: two for each number of both halves, without the zeros of joined ones."""
        inputs = {key: pair.down.shape[1] for key, pair in self.products.items()}
        found = ((inputs[key], part) for key, parts in self.parts.items() for part in parts)
        return sum(2 * part.rank * (count + part.outputs) for count, part in found)


def read_adapter(folder: Path, targets: Mapping[str, AdapterTarget], dtype: torch.dtype) -> AdapterFiles:
    """Read an adapter for a model with these targets. Raises BadCheckpoint or UnsupportedModel."""
    settings, file = read_settings(folder), folder / WEIGHTS
    if not file.is_file():
        raise BadCheckpoint(f"{folder} holds no {WEIGHTS}; other weight formats are refused")
    with opened(file) as tensors:
        targets = _named_as_in(tensors.keys(), targets)
        modules = [name for name, target in targets.items() if settings.targeted(name, target.product[0])]
        headers = _headers(file, tensors, targets)
        _check(file, settings, modules, targets, headers)
        halves = {name: tensors.get_tensor(name) for name in headers}
    products: dict[ProductKey, list[tuple[str, AdapterTarget]]] = {}
    for module in modules:
        products.setdefault(targets[module].product, []).append((module, targets[module]))
    found = {key: _low_rank(parts, halves, settings, dtype) for key, parts in products.items()}
    _refuse_non_finite(file, found)
    parts = {
        key: tuple(AdapterPart(each.first, each.outputs, settings.rank_of(module)) for module, each in those)
        for key, those in products.items()
    }
    rank = max(settings.rank_of(module) for module in modules)
    return AdapterFiles(folder, found, parts, rank, _digest(found))


def _named_as_in(names: Iterable[str], targets: Mapping[str, AdapterTarget]) -> Mapping[str, AdapterTarget]:
    """Modules of a text model beside others have another root in transformers than in checkpoints."""
    stored, root = "language_model.model.", "model.language_model."
    if not any(name.startswith(f"base_model.model.{root}") for name in names):
        return targets
    return {
        root + name.removeprefix(stored) if name.startswith(stored) else name: target
        for name, target in targets.items()
    }


def _headers(file: Path, tensors: object, targets: Mapping[str, AdapterTarget]) -> dict[str, Header]:
    found = {}
    for name in tensors.keys():  # type: ignore[attr-defined]
        match = _KEY.fullmatch(name)
        if match is None or match["module"] not in targets:
            what = "is not a LoRA half of a product that adapters can add to in this model"
            raise BadCheckpoint(f"{file}: {name[:200]} {what}")
        header = tensors.get_slice(name)  # type: ignore[attr-defined]
        found[name] = Header(file, header.get_dtype(), tuple(header.get_shape()))
    return found


def _check(
    file: Path,
    settings: LoraSettings,
    modules: list[str],
    targets: Mapping[str, AdapterTarget],
    headers: Mapping[str, Header],
) -> None:
    """Check that the file holds both halves of each targeted module, in the right shapes, and no other."""
    if not modules:
        raise BadCheckpoint(f"{file}: target_modules of its config names no product of this model")
    left = dict(headers)
    for module in modules:
        target, rank = targets[module], settings.rank_of(module)
        for half, shape in ("A", (rank, target.inputs)), ("B", (target.outputs, rank)):
            name = key(module, half)
            if (header := left.pop(name, None)) is None:
                raise BadCheckpoint(f"{file}: {name} is missing")
            check(name, header, FLOATS, [shape])
    if left:
        raise BadCheckpoint(f"{file}: {next(iter(left))} is not among the target_modules of its config")


def key(module: str, half: str) -> str:
    """Return the name of a module's half, A or B, in PEFT's files."""
    return f"base_model.model.{module}.lora_{half}.weight"


def _low_rank(
    parts: list[tuple[str, AdapterTarget]],
    halves: Mapping[str, Tensor],
    settings: LoraSettings,
    dtype: torch.dtype,
) -> LowRank:
    """Join the parts of one product."""
    ranks = [settings.rank_of(module) for module, _ in parts]
    target, first = parts[0][1], 0
    down = torch.empty(sum(ranks), target.inputs, dtype=dtype)
    up = torch.zeros(sum(ranks), target.whole, dtype=dtype)
    for (module, target), rank in zip(parts, ranks, strict=True):
        rows = slice(first, first + rank)
        down[rows] = halves[key(module, "A")]
        scaled = halves[key(module, "B")].float() * settings.scale_of(module)
        up[rows, target.first : target.first + target.outputs] = scaled.T
        first += rank
    return LowRank(down, up)


def _refuse_non_finite(file: Path, products: LowRanks) -> None:
    for (layer, product), pair in products.items():
        if not all(half.isfinite().all() for half in pair):
            raise BadCheckpoint(f"{file}: layer {layer} has numbers in {product} that are not finite")


def _digest(products: LowRanks) -> bytes:
    whole = sha256()
    for name, pair in sorted(products.items()):
        whole.update(repr((name, *((half.shape, half.dtype) for half in pair))).encode())
        for half in pair:
            whole.update(half.view(torch.uint8).numpy().data)
    return whole.digest()
