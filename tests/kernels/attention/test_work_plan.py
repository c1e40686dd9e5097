"""The work list of attention programs: every key of every query is covered exactly once."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.cache_spec import LayerSpec
from engine.kernels import switches
from engine.kernels.triton.attention import tiles
from engine.kernels.triton.attention.tiles import Tile
from engine.kernels.triton.attention.work_plan import Chunks, plan_items, plan_spans

SPEC = LayerSpec(heads=16, kv_heads=2, key_dim=64, value_dim=64, scale=1.0)


@given(
    rows=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3000)), min_size=1, max_size=20),
    first=st.integers(0, 5),
    queries=st.sampled_from((1, 4, 64)),
    keys=st.sampled_from((16, 64)),
    programs=st.sampled_from((1, 40, 340)),
    window=st.none() | st.integers(1, 4000),
    chunk=st.none() | st.integers(1, 4000),
)
def test_every_visible_key_is_covered_once(
    rows: list[tuple[int, int]],
    first: int,
    queries: int,
    keys: int,
    programs: int,
    window: int | None,
    chunk: int | None,
) -> None:
    counts = np.array([new for new, _ in rows])
    contexts = np.array([new + old for new, old in rows], np.int32)
    starts = np.concatenate(([7], 7 + np.cumsum(counts))).astype(np.int32)
    tile = Tile(queries, padded=2, keys=keys, warps=1, stages=1, programs=programs, pdl=False)
    spec = replace(SPEC, kv_heads=8, window=None if chunk else window, chunk=chunk)
    items, merges, partials = plan_items(Chunks.of(first, starts, contexts, queries), spec, tile)

    spans: dict[int, list[tuple[int, int, int]]] = {}  # by a tile's first token
    covered = []
    for row, token, count, position, begin, end, slot, _ in items.tolist():
        assert 1 <= count <= queries
        assert begin < end
        assert position == contexts[row - first] - starts[row - first + 1] + token
        if token not in spans:
            covered += range(token, token + count)
        low = spec.oldest(position)
        assert low <= begin
        assert end <= position + count
        assert (begin - low) % keys == 0
        spans.setdefault(token, []).append((begin, end, slot))
    assert sorted(covered) == list(range(7, starts[-1]))
    assert (np.diff(items[:, 5] - items[:, 4]) <= 0).all()  # longest first

    merged = {token: (slot, parts) for token, _, slot, parts in merges.tolist()}
    used = []
    for token, pieces in spans.items():
        pieces.sort()
        assert all(one[1] == two[0] for one, two in pairwise(pieces))
        slots = [slot for _, _, slot in pieces]
        if len(pieces) == 1:
            assert slots == [-1]
            assert token not in merged
        else:
            assert merged[token] == (slots[0], len(pieces))
            assert slots == list(range(slots[0], slots[0] + len(pieces)))
            used += slots
    assert sorted(used) == list(range(partials))


def pieces(contexts: list[int], tile: Tile) -> int:
    starts = np.arange(len(contexts) + 1, dtype=np.int32)
    return len(
        plan_items(Chunks.of(0, starts, np.array(contexts, np.int32), 1), replace(SPEC, kv_heads=8), tile)[0]
    )


def test_long_contexts_are_split_if_the_gpu_would_idle() -> None:
    tile = Tile(1, 16, 16, 1, 6, programs=340, pdl=False)
    assert pieces([656], tile) == 41  # an iteration each
    assert pieces([656] * 32, tile) == 32
    assert pieces([656] * 256, tile) == 256
    assert pieces([656] * 255 + [32768], tile) > 255 + 20  # no other program waits for the long one


@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 7, 16])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_tiles_fit_into_shared_memory(
    dim: int, group: int, itemsize: int, overlaps: bool, packed: bool
) -> None:
    """The smallest supported GPUs have 99 KiB for a program."""
    spec = LayerSpec(heads=2 * group, kv_heads=2, key_dim=dim, value_dim=dim, scale=1.0)
    gpu = tiles.GpuLimits(99 * 1024, overlaps)
    long = np.array([9999])
    gathered = tiles.for_gathered(spec, long, long, gpu, itemsize, packed=packed)
    assert (gathered is not None) == (overlaps and itemsize == 2 and dim in (64, 128))
    for tile in (
        *(tiles.for_tokens(spec, rows, gpu, itemsize, packed=packed) for rows in (1, 40, 100, 300, 3000)),
        *(
            tiles.for_chunks(spec, longest, mean, gpu, itemsize, packed=packed)
            for longest in (2, 9, 999)
            for mean in (9, 9999)
        ),
        *([gathered] if gathered else []),
    ):
        height = tile.queries * tile.padded
        assert height >= (8 if tile.pairs else 16)
        assert tile.pairs == (packed and itemsize == 2 and tile is not gathered)
        assert tile.padded >= group
        assert not tile.ahead or overlaps
        taken = tile.keys * tiles.row_bytes(spec, 1 if tile.pairs else itemsize) * tile.stages
        if tile.ahead:
            taken += tile.keys * tiles.dim_padded(dim) * itemsize
        in_registers = tile.queries == 1 or (tile.ahead and tile.keys >= 64)
        taken += 0 if in_registers else height * tiles.dim_padded(dim) * itemsize
        assert taken <= gpu.room


@pytest.mark.parametrize(
    ("rows", "group", "gathered"),
    [
        ([(8192, 8192)], 2, True),
        ([(2048, 2048)] * 4, 2, True),
        ([(1024, 1024)] * 8, 2, False),
        ([(512, 32768)], 2, False),
        ([(512, 32768)], 4, True),
        ([(8192, 32769)], 2, False),  # 128 MiB, and a bit
        ([(2, 9000), (4000, 4000)], 2, False),
    ],
)
def test_contexts_with_many_queries_are_gathered(
    rows: list[tuple[int, int]], group: int, gathered: bool
) -> None:
    spec = LayerSpec(heads=8 * group, kv_heads=8, key_dim=128, value_dim=128, scale=1.0)
    counts, contexts = np.array(rows, np.int32).T
    gpu = tiles.GpuLimits(227 * 1024, overlaps=True)
    for spec_of, expected in ((spec, gathered), (replace(spec, window=9000), False)):
        assert (tiles.for_gathered(spec_of, counts, contexts, gpu, 2) is not None) == expected


@pytest.mark.parametrize(
    ("rows", "gathered"), [([(330, 330)], True), ([(64, 4096)], False), ([(100, 700)] * 16, True)]
)
def test_a_compressed_cache_is_gathered_sooner(rows: list[tuple[int, int]], gathered: bool) -> None:
    """It is unpacked while gathering, which otherwise every tile of queries repeats."""
    spec = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=1.0)
    counts, contexts = np.array(rows, np.int32).T
    gpu = tiles.GpuLimits(227 * 1024, overlaps=True)
    assert (tiles.for_gathered(spec, counts, contexts, gpu, 2, packed=True) is not None) == gathered
    assert tiles.for_gathered(spec, counts, contexts, gpu, 2) is None


def test_gathered_contexts_are_contiguous() -> None:
    table, longest, cells = plan_spans(3, np.array([64, 1, 130], np.int32), 64)
    assert table.tolist() == [[3, 64, 0, 0], [4, 1, 64, 0], [5, 130, 128, 0]]
    assert (longest, cells) == (192, 320)


@given(
    contexts=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    keys=st.sampled_from((16, 64)),
    programs=st.sampled_from((8, 264)),
    spare=st.integers(0, 20),
    few=st.integers(0, 40),
)
def test_items_fit_the_reserved_room(
    contexts: list[int], keys: int, programs: int, spare: int, few: int
) -> None:
    tile = Tile(1, 16, keys, warps=1, stages=1, programs=programs, pdl=False)
    ends = np.array(contexts, np.int32)
    chunks = Chunks.of(0, np.arange(len(ends) + 1), ends, 1)
    items, merges, partials = plan_items(chunks, SPEC, tile, (len(ends) + spare, few))
    assert len(items) <= len(ends) + spare
    assert len(merges) <= few
    assert partials == merges[:, 3].sum() == (items[:, 6] >= 0).sum()
    read = np.zeros(len(ends), int)
    np.add.at(read, items[:, 0], items[:, 5] - items[:, 4])
    assert read.tolist() == contexts


def test_contexts_are_read_ahead_in_layers_like_those_that_were_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row of latents and of Qwen3-30B-A3B, not of Qwen3-0.6B, Llama-3.1-8B, gpt-oss-20b, Gemma 3 12B."""
    gpu = tiles.GpuLimits(227 * 1024, overlaps=True)

    def ahead(heads: int, kv_heads: int, dim: int, rows: int = 1, packed: bool = False, **more: Any) -> bool:
        spec = LayerSpec(heads=heads, kv_heads=kv_heads, key_dim=dim, value_dim=dim, scale=1.0, **more)
        return tiles.for_tokens(spec, rows, gpu, 2, packed=packed).fetch

    assert ahead(32, 4, 128)
    assert not ahead(16, 8, 128) and not ahead(32, 8, 128)
    assert not ahead(64, 8, 64, sinks=True) and not ahead(64, 8, 64) and not ahead(16, 8, 256)
    for more in ({"window": 128}, {"sinks": True}, {"softcap": 50.0}):
        assert not ahead(32, 4, 128, **more)
    assert not ahead(32, 4, 128, 2) and not ahead(32, 4, 128, packed=True)
    latents = LayerSpec(heads=16, kv_heads=1, key_dim=576, value_dim=512, scale=1.0, latent=True)
    assert [tiles.for_tokens(latents, rows, gpu, 2).fetch for rows in (1, 2)] == [True, False]
    monkeypatch.setattr(switches, "FETCH", False)
    assert not ahead(32, 4, 128) and not tiles.for_tokens(latents, 1, gpu, 2).fetch
