"""What a block is made of: a part owns its shapes, its names in a checkpoint, its cuts, and its launches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor, nn

from engine.api.config import CacheSpec, DecoderConfig
from engine.models.layers.sharding import Sharding
from engine.models.layers.step import StepContext

if TYPE_CHECKING:  # of which the second brings Triton, which is there where a GPU is
    from engine.models.layers.build import Build
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual

PDL_ROWS = 32  # rows up to which kernels start early, whatever does the products


class Slot(NamedTuple):
    """Where a tensor goes: a view into a parameter, and the shape that the file must have."""

    view: Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """Rows of a parameter that a checkpoint has under a name of their own."""

    name: str
    rows: int
    cut: Sharding
    shape: tuple[int, ...] | None = None  # that the file has, where one tensor is for all these rows


class Part(nn.Module):
    """Made for one of `ranks`, with the shapes of its share. A subclass is attention or a feed-forward."""

    pdl: ClassVar[bool] = False  # whether its kernels may start while the one before ends: each waits itself
    cache: CacheSpec | None = None  # what it keeps of a token between steps

    def __init__(self, config: DecoderConfig, index: int, build: "Build") -> None:
        super().__init__()
        self.index, self.hidden, self.names = index, config.hidden, build.names

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        """By its name in the part, what each product and norm is made of: rows one behind another."""
        raise NotImplementedError

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """The term that it adds to the stream [tokens, hidden]; a rank's is a part of the sum. The oracle."""
        raise NotImplementedError

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        """The same by its own launches. None: `forward` runs, which is counted and named by `doctor`."""
        return None

    @classmethod
    def launches(cls) -> bool:
        """Whether it has launches of its own."""
        return cls.fused is not Part.fused

    def takes_single(self, gpu: "GpuKernels") -> bool:
        """Whether `fused` has a shorter way for a step of one row; taken if all parts have one."""
        return False

    def gains_by_pdl(self, rows: int, gpu: "GpuKernels") -> bool:
        """Of a feed-forward: whether a step of so many rows is faster if kernels start early."""
        return rows <= PDL_ROWS

    def slots(self) -> Iterator[tuple[str, Slot]]:
        """Every tensor of a checkpoint that it reads, by its name in the block."""
        for name, parameter, piece in self._named():
            yield name, Slot(parameter, piece.shape or tuple(parameter.shape))

    def shards(self, ranks: int) -> dict[str, Sharding]:
        """By its name in the block, how each tensor is cut over ranks. Of a part made for one rank.

        Raises where it cannot be cut so.
        """
        found = {}
        for name, parameter, piece in self._named():
            cut = piece.cut.of_bias if name.endswith(".bias") else piece.cut
            cut.check(name, parameter.shape[1 if cut.kind == "columns" else 0], ranks)
            found[name] = cut
        return found

    def _named(self) -> Iterator[tuple[str, Tensor, SourceTensor]]:
        for attribute, pieces in self.pieces().items():
            rows = [piece.rows for piece in pieces]
            for kind, whole in self.get_submodule(attribute).named_parameters():
                for piece, view in zip(pieces, whole.split(rows), strict=True):
                    yield f"{piece.name}.{kind}", view, piece
