"""The matrices of loaded adapters, for torch: on CPUs, and the oracle for kernels."""

from collections import OrderedDict

import numpy as np
import torch

from engine.models.adapters.files import AdapterFiles
from engine.models.adapters.products import (
    MASKED_TOKENS,
    AdapterStack,
    GroupedAdapters,
    LowRank,
    LowRanks,
    MaskedAdapters,
    OneAdapter,
    StepAdapters,
    Upload,
)

_STACKS = 4  # kept for the sets of adapters that decode together


class AdapterMatrices:
    layout = None  # no launch depends on them

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loaded: dict[int, LowRanks] = {}
        self._stacks: OrderedDict[tuple[int, ...], AdapterStack] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self._loaded

    def put(self, number: int, files: AdapterFiles) -> None:
        self._loaded[number] = {
            key: LowRank(*(half.to(self._device) for half in pair)) for key, pair in files.products.items()
        }

    def drop(self, number: int) -> None:
        self._loaded.pop(number, None)
        for key in [key for key in self._stacks if number in key]:
            del self._stacks[key]

    @property
    def nbytes(self) -> int:
        """Apart from copies for steps that mix adapters."""
        pairs = (pair for each in self._loaded.values() for pair in each.values())
        return sum(half.nbytes for pair in pairs for half in pair)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        return numbers

    def of_step(self, adapters: np.ndarray, lengths: np.ndarray, upload: Upload) -> StepAdapters:
        used = tuple(sorted({*adapters.tolist()} - {0}))
        if len(used) == 1 and adapters.all():
            return OneAdapter(self._loaded[used[0]])
        tokens = np.repeat(adapters, lengths)
        if len(tokens) <= MASKED_TOKENS:
            return MaskedAdapters(self._stack(used), upload([tokens])[0])
        places = upload([(tokens == number).nonzero()[0] for number in used])
        return GroupedAdapters([(self._loaded[each], at) for each, at in zip(used, places, strict=True)])

    def _stack(self, used: tuple[int, ...]) -> AdapterStack:
        if (found := self._stacks.get(used)) is None:
            found = self._stacks[used] = AdapterStack.of({each: self._loaded[each] for each in used})
            if len(self._stacks) > _STACKS:
                self._stacks.popitem(last=False)
        self._stacks.move_to_end(used)
        return found
