"""The parts of a block: a part owns its shapes, checkpoint names, sharding and kernel launches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor, nn

from engine.api.cache_spec import CacheSpec
from engine.api.config import DecoderConfig
from engine.models.layers.sharding import Sharding
from engine.models.layers.step import StepContext

if TYPE_CHECKING:  # gpu.py imports Triton, which may be missing without a GPU
    from engine.models.layers.build import Build
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual

PDL_ROWS = 32  # up to this many rows PDL helps with any product


class Slot(NamedTuple):
    """The destination of a checkpoint tensor: a view into a parameter, and the shape required in the file."""

    view: Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """Rows of a parameter that are a separate tensor in checkpoints."""

    name: str
    rows: int
    cut: Sharding
    shape: tuple[int, ...] | None = None  # in the file, if one tensor covers all these rows
    stacked: int = 0  # in the file, the rows of this many experts are one tensor [experts, inputs, outputs]


class Part(nn.Module):
    """Attention or a feed-forward, with the shapes of one rank's share."""

    pdl: ClassVar[bool] = False  # whether its kernels support PDL: each waits for its own inputs
    one_term: ClassVar[bool] = False  # whether the term is one product, which its kernels leave pending
    interleaves: ClassVar[bool] = False  # whether its kernels rotate adjacent numbers, as some families do
    cache: CacheSpec | None = None  # what it caches of a token between steps
    adaptable: ClassVar[tuple[str, ...]] = ()  # the products that adapters can add to, see `product`

    def __init__(self, config: DecoderConfig, index: int, build: "Build") -> None:
        super().__init__()
        self.index, self.hidden, self.names = index, config.hidden, build.names
        self.sinks: Tensor | None = None  # of an attention: a learned score per head, see CacheSpec.sinks

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        """Return the tensors that make up each product and norm (concatenated rows), by attribute name."""
        raise NotImplementedError

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the term to add to the stream [tokens, hidden], a partial sum on a rank. The reference."""
        raise NotImplementedError

    def product(self, name: str, x: Tensor, step: StepContext) -> Tensor:
        """Compute one of the `adaptable` products, with what the tokens' adapters add to it."""
        out: Tensor = getattr(self, name)(x)
        if step.adapters is not None:
            step.adapters.add(self.index, name, x, out)
        return out

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        """Like `forward`, with its own kernels. None: `forward` runs, and `doctor` reports that."""
        return None

    @classmethod
    def launches(cls) -> bool:
        """Whether the part has its own kernels."""
        return cls.fused is not Part.fused

    def takes_single(self, gpu: "GpuKernels") -> bool:
        """Whether `fused` has a faster path for a step of one row, used only if all parts have one."""
        return False

    def gains_by_pdl(self, rows: int, gpu: "GpuKernels") -> bool:
        """For a feed-forward: whether PDL makes a step of `rows` rows faster."""
        return rows <= PDL_ROWS

    def slots(self) -> Iterator[tuple[str, Slot]]:
        """Yield every checkpoint tensor that it reads, by its name in the block."""
        for name, parameter, piece in self._named():
            yield name, Slot(parameter, piece.shape or tuple(parameter.shape))

    def shards(self, ranks: int) -> dict[str, Sharding]:
        """Return each tensor's sharding, by its name in the block. Call it on a part built for one rank.

        Raises if a tensor cannot be split.
        """
        found = {}
        for name, parameter, piece in self._named():
            cut = piece.cut.of_bias if name.endswith("bias") else piece.cut
            cut.check(name, parameter.shape[cut.axis], ranks)
            found[name] = cut
        return found

    def _named(self) -> Iterator[tuple[str, Tensor, SourceTensor]]:
        for attribute, pieces in self.pieces().items():
            rows = [piece.rows for piece in pieces]
            owner, _, own = attribute.rpartition(".")
            if own in self.get_submodule(owner)._parameters:  # a tensor without a module: without a suffix
                views = self.get_parameter(attribute).split(rows)
                yield from ((piece.name, view, piece) for piece, view in zip(pieces, views, strict=True))
                continue
            for kind, whole in self.get_submodule(attribute).named_parameters():
                for piece, view in zip(pieces, whole.split(rows), strict=True):
                    yield (
                        (f"{piece.name}.{kind}", view, piece)
                        if not piece.stacked
                        else _stacked(piece, kind, view)
                    )


def _stacked(piece: SourceTensor, kind: str, view: Tensor) -> tuple[str, Tensor, SourceTensor]:
    """Return the name and the view of a weight or a bias of all experts, as in the file."""
    by_expert = view.unflatten(0, (piece.stacked, -1))
    if kind == "weight":
        return piece.name, by_expert.transpose(1, 2), piece
    return f"{piece.name}_{kind}", by_expert, piece
