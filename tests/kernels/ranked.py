"""Two ranks of a small quantized decoder in the interpreter's process, which can run only one at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.cache_spec import LayerSpec
from engine.api.config import DecoderConfig, RopeSpec
from engine.attention.base import attending
from engine.attention.torch_backend import TorchAttention
from engine.kv.store import KVStore
from engine.quant.linear import Linear
from tests.attention.cases import make_batch

RANKS = 2
SPEC = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.125)
CONFIG = DecoderConfig(
    family="llama", dtype="float16", hidden=128, layers=(SPEC,) * 2, vocab=50, max_context=64, mlp=1024,
    norm_eps=1e-5, rope=RopeSpec(theta=1e4), tied=False,
)  # fmt: skip


class Turns:
    """What the ranks give each other. A rank runs while it has the lock, up to its next exchange."""

    def __init__(self) -> None:
        self.lock = Condition()
        self._given: list[dict[int, Tensor]] = []  # by exchange, then by rank
        self._at = [0] * RANKS

    def exchanged(self, rank: int, own: Tensor) -> list[Tensor]:
        at, self._at[rank] = self._at[rank], self._at[rank] + 1
        if at == len(self._given):
            self._given.append({})
        self._given[at][rank] = own.clone()
        self.lock.notify_all()
        if not self.lock.wait_for(lambda: len(self._given[at]) == RANKS, 60):
            raise TimeoutError(f"exchange {at} of rank {rank}")
        return [self._given[at][each] for each in range(RANKS)]


def collective(rank: int, turns: Turns) -> Any:
    """The collective of a GPU, with the exchanges alone replaced."""
    from engine.distributed.peers import PeerCollective

    class Taking(PeerCollective):
        def __init__(self) -> None:
            self.rank, self.ranks = rank, RANKS

        def sum(self, term: Tensor) -> Tensor:
            return torch.stack(turns.exchanged(rank, term)).float().sum(0).to(term.dtype)

        def gather(self, part: Tensor) -> Tensor:
            return torch.cat(turns.exchanged(rank, part), -1)

    return Taking()


def product_of(scheme: str, weight: Tensor) -> Any:
    """The product that a GPU has."""
    from engine.quant import fp8_linear, int8
    from engine.quant.gpu_products import Fp8Product, Int4Product, Int8Product
    from engine.quant.int4 import grouped

    if scheme == "int8":
        return Int8Product(*int8.quantized(weight), None)
    if scheme == "fp8":
        return Fp8Product(*fp8_linear.quantized(weight), None)
    return Int4Product(grouped(weight, 32), None, weight.shape[1], weight.dtype)


class Dequantized(nn.Module):
    """The oracle of a product, in plain torch. `rounds`: it rounds the rows to FP8."""

    def __init__(self, product: Any, *, rounds: bool) -> None:
        super().__init__()
        self.weight: Tensor = product.dequantized()
        self.rounds = rounds

    def dequantized(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        from engine.quant.fp8_linear import quantized

        numbers, steps = quantized(x) if self.rounds else (x, torch.ones(()))
        return F.linear(numbers.float() * steps, self.weight).to(x.dtype)


def replaced(model: Any, make: Callable[[nn.Module], nn.Module]) -> None:
    """Replace the products of the layers. The head has its own scheme."""
    for owner in list(model.layers.modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, Linear) or hasattr(child, "dequantized"):
                setattr(owner, name, make(child))


def logits_of_ranks(scheme: str, rows: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each rank: the logits of its fused step, those of plain torch with the same quantized numbers, and
    the same with activations that are not rounded.
    """
    turns = Turns()

    def one(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        with turns.lock, torch.inference_mode():
            return _logits(scheme, rows, collective(rank, turns))

    with ThreadPoolExecutor(RANKS) as threads:
        return [*threads.map(one, range(RANKS))]


def _logits(scheme: str, rows: Sequence[tuple[int, int]], own: Any) -> tuple[Tensor, Tensor, Tensor]:
    from engine.attention.triton_backend import TritonAttention
    from engine.models.decoder import Decoder
    from engine.models.fused import FusedDecoder
    from engine.models.loader import random_weights

    model = Decoder(CONFIG, torch.float16, collective=own).eval()
    random_weights(model, seed=own.rank)
    for parameter in model.layers.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
    replaced(model, lambda linear: product_of(scheme, linear.weight))
    head: Any = model.head
    model.head = product_of("int8", head.weight)
    room: dict[str, Any] = {"blocks": 8, "block_size": 16, "host_blocks": 0, "dtype": torch.float16}
    mine, theirs = (KVStore(model.caches, device=torch.device("cpu"), **room).layers for _ in range(2))
    generator = torch.Generator().manual_seed(own.rank)
    for each, same in zip(mine, theirs, strict=True):
        for tensor, other in zip(each.tensors(), same.tensors(), strict=True):
            other.copy_(tensor.normal_(generator=generator))
    batch = make_batch(rows, [[2 * each, 2 * each + 1] for each in range(len(rows))], 16)
    ids = torch.arange(len(batch.positions)) * 7 % CONFIG.vocab
    backend = TritonAttention()
    fused = FusedDecoder(model, mine, backend)
    x = fused.embed(ids, torch.arange(len(ids)), ids)
    found = fused.logits(fused.forward(x, batch.positions, batch.places, backend.prepare(batch)))
    assert not fused.plain
    model.head = Dequantized(model.head, rounds=False)

    def plain(*, rounds: bool) -> Tensor:
        replaced(model, lambda product: Dequantized(product, rounds=rounds))
        attend = attending(TorchAttention(), theirs, batch)
        return model.logits(model.forward(ids, batch.positions, attend))

    return found, plain(rounds=scheme == "fp8"), plain(rounds=False)
