"""Where the blocks of some tensors lie in memory, as numbers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

WORD = 8  # bytes; the size of any tensor's block is a multiple of it


class Places(NamedTuple):
    """Of each tensor one number in words, and its address in bytes."""

    addresses: np.ndarray
    words: np.ndarray  # of a block
    strides: np.ndarray  # from one block to the next

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Places":
        """Of tensors [blocks, ...], each block without gaps."""
        addresses = [each.data_ptr() for each in tensors]
        words = [each.nbytes // (len(each) * WORD) for each in tensors]
        strides = [each.stride(0) * each.element_size() // WORD for each in tensors]
        return cls(*(np.array(each, np.int64) for each in (addresses, words, strides)))

    def in_rows(self, rows: Tensor) -> "Places":
        """Of rows of bytes [blocks, bytes per block] that hold these tensors' blocks one after the other."""
        starts = np.cumsum(self.words) - self.words
        strides = np.full_like(self.words, rows.shape[1] // WORD)
        return Places(rows.data_ptr() + WORD * starts, self.words, strides)

    def at(self, blocks: np.ndarray) -> np.ndarray:
        """The addresses of these blocks: [blocks, tensors]."""
        return self.addresses + WORD * self.strides * blocks[:, None]
