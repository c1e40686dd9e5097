"""Keys in four bits by channel: the same bytes however a sequence is cut, and the error of reading them."""

import math
import random

import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec, why_not_packed
from engine.api.errors import BadInput
from engine.attention import registry
from engine.attention.base import why_no_kv_scheme
from engine.attention.channels import keys_of
from engine.attention.torch_backend import TorchAttention
from engine.kv.store import GROUP, KVLayer, KVStore
from tests.attention import oracle
from tests.attention.cases import Case, make_batch

SPEC = LayerSpec(heads=4, kv_heads=2, key_dim=8, value_dim=6, scale=0.3)
DULL = 0.01  # times a key: a query whose scores the oracle can exponentiate


def empty(blocks: int, block_size: int) -> KVLayer:
    """A layer whose bytes are those of other requests."""
    store = KVStore(
        [SPEC], blocks=blocks, block_size=block_size, host_blocks=0, dtype=torch.float32,
        device=torch.device("cpu"), scheme="int4",
    )  # fmt: skip
    rng = torch.Generator().manual_seed(1)
    for tensor in store.layers[0].tensors():
        flat = tensor.view(-1).view(torch.uint8)
        flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=rng))
    return store.layers[0]


def bf16(number: float) -> float:
    return torch.tensor(number).bfloat16().item()


def rounded(number: float, by: float) -> float:
    return torch.tensor(number).float().div(by).item()


def bytes_of(numbers: list[float]) -> list[float]:
    """What eight bits and a scale keep of them."""
    by = bf16(max(map(abs, numbers)) / 127)
    return [math.floor(rounded(each, by or 1) + 0.5) * by for each in numbers]


def fours_of(numbers: list[float]) -> list[float]:
    """What four bits and a scale keep of them."""
    by = bf16(max(map(abs, numbers)) / 7.5)
    return [(min(15, max(0, math.floor(rounded(each, by or 1) + 8))) - 7.5) * by for each in numbers]


def plain_keys(keys: list[list[float]]) -> list[list[float]]:
    """The oracle: what is kept of one head's keys, a number at a time."""
    kept: list[list[float]] = []
    for at, key in enumerate(keys):
        if at % GROUP == 0:
            channels = list(zip(*kept[-GROUP:], key, strict=True))
            low, high = [min(each) for each in channels], [max(each) for each in channels]
            widths = [(b - a) / 2 for a, b in zip(low, high, strict=True)]
            centers = bytes_of([(a + b) / 2 for a, b in zip(low, high, strict=True)])
            spreads = bytes_of([max(each, max(widths) / 16) if max(widths) else 1.0 for each in widths])
        away = [(x - c) / s for x, c, s in zip(key, centers, spreads, strict=True)]
        kept.append([x * s + c for x, c, s in zip(fours_of(away), centers, spreads, strict=True)])
    return kept


def written(layer: KVLayer, table: list[int], parts: list[tuple[int, Tensor, Tensor]]) -> Tensor:
    """Write parts (first position, keys, values) of one row in turn; return its attention."""
    out = []
    for first, k, v in parts:
        batch = make_batch([(len(k), first + len(k))], [table], layer.block_size)
        q = torch.cat((k, k), 1) * DULL
        backend = TorchAttention()
        out.append(backend.attend(q, k, v, layer, backend.prepare(batch)))
    return torch.cat(out)


def sequence(length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys with channels of very different sizes, some far from zero."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-1, 1, SPEC.key_dim)
    keys = (torch.randn(length, 2, SPEC.key_dim, generator=rng) + torch.tensor([0, 3] * 4)) * sizes
    return keys, torch.randn(length, 2, SPEC.value_dim, generator=rng)


@pytest.mark.parametrize("block_size", [16, 32])
def test_the_bytes_do_not_depend_on_how_a_prompt_is_cut(block_size: int) -> None:
    """Nor on where its blocks are, what was there before, or on drafts that were rejected."""
    chance = random.Random(block_size)
    for seed in range(12):
        length = chance.randrange(1, 90)
        keys, values = sequence(length, seed)
        whole = empty(9, block_size)
        blocks = list(range(-(-length // block_size)))
        expected = written(whole, blocks, [(0, keys, values)])
        cut, table = empty(9, block_size), chance.sample(range(9), len(blocks))
        parts, at = list[tuple[int, Tensor, Tensor]](), 0
        while at < length:
            stop = min(length, at + chance.choice([1, 1, 1, 2, 7, 30]))
            drafts, _ = sequence(min(length - at, 5), seed + 99)
            parts += [(at, keys[at:stop], values[at:stop])]
            if chance.random() < 0.3 and stop < length:
                written(cut, table, parts)
                drafts = drafts[: length - stop]
                written(cut, table, [(stop, drafts, values[: len(drafts)])])
                parts = []
            at = stop
        written(cut, table, parts)
        again = written(cut, table, [(length - 1, keys[-1:], values[-1:])])
        torch.testing.assert_close(again, expected[-1:], rtol=1e-5, atol=1e-5)
        full = length // block_size
        for ours, theirs in zip(cut.tensors(), whole.tensors(), strict=True):
            assert torch.equal(ours[table[:full]], theirs[:full])
        mine = keys_of(cut, torch.tensor(table)).flatten(0, 1)[:length]
        assert torch.equal(mine, keys_of(whole, torch.tensor(blocks)).flatten(0, 1)[:length])


def test_rows_of_one_step_do_not_touch_each_other() -> None:
    keys, values = sequence(70, 5)
    alone, together = empty(9, 16), empty(9, 16)
    rows, tables = [(1, 16), (1, 17), (1, 18), (9, 19)], [[0], [1, 2], [3, 4], [5, 6]]
    for layer in (alone, together):
        for (count, context), table in zip(rows, tables, strict=True):
            before = slice(0, context - count)
            written(layer, table, [(0, keys[before], values[before])])
    fresh_keys, fresh_values, at = keys[-12:], values[-12:], 0
    for (count, context), table in zip(rows, tables, strict=True):
        part = slice(at, at + count)
        written(alone, table, [(context - count, fresh_keys[part], fresh_values[part])])
        at += count
    backend = TorchAttention()
    batch = make_batch(rows, tables, 16)
    q = torch.cat((fresh_keys, fresh_keys), 1)
    backend.attend(q, fresh_keys, fresh_values, together, backend.prepare(batch))
    for ours, theirs in zip(together.tensors(), alone.tensors(), strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_keys_are_what_the_oracle_keeps() -> None:
    keys, values = sequence(53, 3)
    layer = empty(4, 16)
    written(layer, [2, 0, 3, 1], [(0, keys, values)])
    found = keys_of(layer, torch.tensor([2, 0, 3, 1])).flatten(0, 1)[:53]
    for head in range(2):
        expected = torch.tensor(plain_keys(keys[:, head].tolist()))
        torch.testing.assert_close(found[:, head], expected, rtol=1e-4, atol=1e-4)


def test_attention_is_that_of_the_kept_numbers() -> None:
    """The plain oracle over an uncompressed cache of the numbers that were kept."""
    keys, values = sequence(60, 8)
    layer = empty(4, 16)
    found = written(layer, [3, 1, 0, 2], [(0, keys, values)])
    kept = keys_of(layer, torch.tensor([3, 1, 0, 2])).flatten(0, 1)[:60]
    fours = torch.tensor([[fours_of(head) for head in token] for token in values.tolist()])
    batch = make_batch([(60, 60)], [[0, 1, 2, 3]], 16)
    plain = KVLayer(SPEC, torch.zeros(4, 16, 2, 8), torch.zeros(4, 16, 2, 6))
    case = Case(batch, plain, torch.cat((keys, keys), 1) * DULL, kept, fours)
    expected = oracle.attend(case.q, case.k, case.v, case.layer, case.batch)
    assert expected.isfinite().all()
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


def test_a_channel_of_large_numbers_leaves_the_others_exact() -> None:
    keys, values = sequence(80, 4)
    layer = empty(5, 16)
    large = keys * torch.tensor([1, 1, 1, 50.0, 1, 1, 1, 1])
    errors = []
    for given in (keys, large):
        written(layer, list(range(5)), [(0, given, values)])
        found = keys_of(layer, torch.arange(5)).flatten(0, 1)
        errors.append((found - given)[GROUP:, :, 4:].abs().mean())
    assert errors[1] < 2.5 * errors[0]


def test_odd_heads_are_refused() -> None:
    odd = LayerSpec(heads=2, kv_heads=2, key_dim=15, value_dim=16, scale=0.2)
    assert "odd number" in (why_not_packed([odd], "int4") or "")
    assert why_not_packed([odd], "int8") is None
    with pytest.raises(BadInput, match="odd number"):
        KVStore(
            [odd], blocks=1, block_size=16, host_blocks=0, dtype=torch.float32,
            device=torch.device("cpu"), scheme="int4",
        )  # fmt: skip


def test_the_backends_of_gpus_read_it() -> None:
    gpu = torch.device("cuda")
    assert registry.why_not("torch", gpu, [SPEC], torch.float32, "int4") is None
    assert why_no_kv_scheme(TorchAttention(), [SPEC], "int4") is None
    pytest.importorskip("triton", reason="no Triton here")
    from engine.attention.triton_backend import TritonAttention

    assert why_no_kv_scheme(TritonAttention(), [SPEC], "int4") is None
