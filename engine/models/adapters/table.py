"""The adapters on a GPU, in a table of addresses at a fixed place, from which the kernels read them.

An adapter that is loaded or dropped changes numbers in the table, so captured graphs stay valid. Other graphs
are only needed if the layout changes: a larger rank, another product, or more adapters than ever before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import gcd
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.adapters.files import AdapterFiles
from engine.models.adapters.products import ProductKey
from engine.models.adapters.targets import AdapterTarget

# Of a module: the addresses of down and up, the rank, its first output, its outputs; two counters of
# gemm_with_terms.py, at the first place; one is unused.
FIELDS = 8
_FEWEST = 16  # adapters that there are places for
_LOWEST = 16  # the smallest rank of a tensor core product
_ALIGNED = 16  # numbers: a row of `up` begins at a multiple


class AdapterLayout(NamedTuple):
    """What the launches of a step with adapters depend on."""

    places: int = _FEWEST + 1  # the first one is for rows without an adapter
    rank: int = _LOWEST
    products: frozenset[str] = frozenset()  # that adapters add to, by their attributes


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of a product in the table: adjacent columns."""

    first: int
    parts: tuple[tuple[int, int], ...]  # the first output and the outputs of each

    @property
    def columns(self) -> slice:
        return slice(self.first, self.first + len(self.parts))

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(outputs for _, outputs in self.parts)

    @property
    def aligned(self) -> int:
        """A power of two that divides where they begin and end."""
        return gcd(_ALIGNED, *chain(*self.parts))


class AdapterTable:
    """Gives each loaded adapter a place, by its number."""

    def __init__(self, targets: Iterable[AdapterTarget], dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`: of the matrices."""
        self.layout, self.dtype = AdapterLayout(), dtype
        self.modules = _modules(targets)
        parts = [part for each in self.modules.values() for part in each.parts]
        self._blank, self._device = np.zeros((len(parts), FIELDS), np.int64), device
        self._blank[:, 3:5] = parts
        self.numbers = self._empty(self.layout.places)  # [places, modules, FIELDS]
        self._places: dict[int, int] = {0: 0}
        self._held: dict[int, list[Tensor]] = {}  # the matrices of each adapter

    def __contains__(self, number: int) -> bool:
        return number in self._held

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for held in self._held.values() for each in held)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """The places of adapters; 0 for none."""
        return np.array([self._places[number] for number in numbers.tolist()], np.int64)

    def put(self, number: int, files: AdapterFiles) -> None:
        """Copy an adapter to the device."""
        held: list[Tensor] = []
        row = self._blank.copy()
        for key, parts in files.parts.items():
            modules, (down, up), top = self.modules[key], files.products[key], 0
            for part in parts:
                rows = slice(top, top := top + part.rank)
                own = up[rows, part.first : part.first + part.outputs]
                halves = (down[rows], F.pad(own, (0, -part.outputs % _ALIGNED)))
                held += (there := [half.contiguous().to(self._device) for half in halves])
                at = modules.first + modules.parts.index((part.first, part.outputs))
                row[at, :3] = *(each.data_ptr() for each in there), part.rank
        self._make_room(files)
        place = min({*range(1, self.layout.places)} - {*self._places.values()})
        self.numbers[place].copy_(torch.from_numpy(row))
        self._places[number], self._held[number] = place, held

    @torch.inference_mode(False)
    def _empty(self, places: int) -> Tensor:
        return torch.from_numpy(self._blank).to(self._device).repeat(places, 1, 1)

    def drop(self, number: int) -> None:
        """Release an adapter. No step in flight may use it."""
        del self._places[number], self._held[number]

    @torch.inference_mode(False)  # whose tensors could not be changed outside of it
    def _make_room(self, files: AdapterFiles) -> None:
        """Change the layout if this adapter needs another one."""
        places, rank, products = self.layout if self._held else AdapterLayout(self.layout.places)
        if len(self._places) == places:
            self.numbers, places = torch.cat([self.numbers, self._empty(places)]), 2 * places
            self.numbers[0] = self.numbers[-1]  # of no adapter: launches have counted in it
        rank = max(rank, 1 << (files.rank - 1).bit_length())
        self.layout = AdapterLayout(places, rank, products | {name for _, name in files.products})


def _modules(targets: Iterable[AdapterTarget]) -> Mapping[ProductKey, Modules]:
    parts: dict[ProductKey, list[tuple[int, int]]] = {}
    for each in targets:
        parts.setdefault(each.product, []).append((each.first, each.outputs))
    found, first = {}, 0
    for key, those in parts.items():
        found[key] = Modules(first, tuple(those))
        first += len(those)
    return found
