"""A convolution over the last few tokens, alone: its state is only its last inputs."""

from dataclasses import dataclass

from torch import Tensor

from engine.attention.recurrence import Recurrence
from engine.attention.state_runs import DeviceRuns, StateRuns
from engine.kv.store import KVLayer


@dataclass(frozen=True, slots=True)
class ShortConvolution(Recurrence):
    """There are no gates. Results are [tokens, channels], in float32."""

    def advance(self, x: Tensor, gates: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        if x.is_cuda:
            return self.advance_on_device(x, gates, layer, runs.on_device)
        return self.summed(x, layer, runs)

    def advance_on_device(self, x: Tensor, gates: Tensor, layer: KVLayer, runs: DeviceRuns) -> Tensor:
        # Imports Triton, which is only installed with a GPU.
        from engine.kernels.triton.linear.convolve import convolve

        how = self.conv, self.conv_bias, runs
        return convolve(layer, x.contiguous().unsqueeze(0), 0, *how, activated=False)[0]
