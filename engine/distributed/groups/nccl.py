"""Sums and gathers of ranks on GPUs that cannot write into each other's memory: over NCCL.

Each GPU gets all terms and adds them in rank order, so all have the same bits. A communicator that was
stopped is of no use any more, so no CUDA graph contains it.
"""

import threading

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from engine.devices import use
from engine.distributed.collective import LIMIT
from engine.distributed.groups.board import Board
from engine.distributed.groups.clocks import GpuClock
from engine.distributed.groups.group import GroupCollective
from engine.kernels.triton.norm.norm import Normed, normed
from engine.kernels.triton.precompile import precompiling


class NcclCollective(GroupCollective):
    """For tensors on a GPU. One thread of each rank uses it, except for `interrupt`."""

    deferred = True

    def __init__(
        self, rank: int, ranks: int, board: Board, name: str, device: torch.device, limit: float = LIMIT
    ) -> None:
        super().__init__(rank, ranks, board, name, device, limit)
        use(device)
        self._clock, self._stopping = GpuClock(), threading.Lock()
        board.watch(self._noticed)

    def sum(self, term: Tensor) -> Tensor:
        """Added in float32."""
        parts = self._all_parts(term)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(term.dtype)

    def sum_norm(
        self, x: Tensor, parts: Tensor, weight: Tensor, eps: float, *, rounded: bool, pdl: bool = False
    ) -> Normed:
        """Add the sum of all ranks' terms to x, in place; return its norm, `rounded` to FP8 or not."""
        term = (parts[0] if len(parts) == 1 else parts.sum(0)).to(x.dtype)
        return normed(x, self._all_parts(term), weight, eps, rounded=rounded)

    def finish(self) -> None:
        """Wait until no call of this rank runs."""
        torch.cuda.synchronize(self._device)

    def reset(self) -> None:
        self.finish()
        super().reset()

    def _all_parts(self, part: Tensor) -> Tensor:
        if precompiling():
            return part.new_empty(self.ranks, *part.shape)
        return super()._all_parts(part)

    def _exchange(self, found: Tensor, part: Tensor) -> None:
        options = AllgatherOptions()
        options.asyncOp = False  # on the stream of the step
        self._joined()._allgather_base(found, part, options)

    def _noticed(self, key: str) -> None:
        """If this turn is stopped, have its kernels end: they wait for a rank that does not come."""
        if key == self._stop:
            threading.Thread(target=self._abort, name="abort", daemon=True).start()

    def _abort(self) -> None:
        with self._stopping:
            if (group := self._group) is not None:
                group.abort()

    def _leave(self) -> None:
        self._abort()
        super()._leave()
