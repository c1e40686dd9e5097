"""Block tables in the packages' format: the blocks of all rows in one list."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pages:
    """All int32, on the host."""

    starts: Tensor  # [rows + 1]: offsets of the rows' blocks in the list
    blocks: Tensor  # the list
    last: Tensor  # [rows]: tokens each row attends to in its last block

    @classmethod
    def of(cls, tables: np.ndarray, contexts: np.ndarray, block_size: int) -> "Pages":
        counts = -(-contexts // block_size)
        starts = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        listed = tables[np.arange(tables.shape[1]) < counts[:, None]]
        last = (contexts - (counts - 1) * block_size).astype(np.int32)
        return cls(torch.from_numpy(starts), torch.from_numpy(listed), torch.from_numpy(last))
