"""Tile sizes of the attention programs; docs/attention-gpu.md has the measurements behind them."""

from dataclasses import dataclass

import numpy as np

from engine.api.cache_spec import LayerSpec
from engine.kernels import switches
from engine.kernels.triton.launch import power

# Rows of the smallest tensor core product. float32 uses no more: the compiler unrolls its products element by
# element, and takes up to a minute and a half for a larger tile.
NARROW = 16
NARROW_PAIRS = 8  # the same over a compressed cache, where queries are the other operand (pairs.py)
LONG = 2048  # context length from which the masked corner of a tall tile is relatively small
# Contexts are gathered if each key is read by this many queries (counted per query head), and keys and values
# take at most this many bytes.
GATHERED, MOST_GATHERED = 1536, 2**27
GATHERED_PACKED = 160  # lower, since gathering also dequantizes once
# Prompts on Hopper use specialized.py if they have so many scores, over all heads. 2**62: never.
SPECIALIZED = 2**26
# Over latents: shared memory for tiles of four times NARROW; the most pieces that a context is split into if
# there are few rows, as each leaves a partial result of all heads; the rows up to which PDL is used; and rows
# that fill the GPU, as those of a prompt do.
ROOM_FOR_TALL, MOST_PIECES, FEW, FULL = 200 * 2**10, 64, 32, 264
# One row's context is read ahead in layers like those of Qwen3-30B-A3B, the only ones that are known to be
# faster with it. Queries have so many numbers, whose product reads its weight earlier then, and a token's
# keys and values take at most so many bytes.
WIDE, SHORT = 4096, 2048


@dataclass(frozen=True, slots=True)
class GpuLimits:
    room: int  # bytes of shared memory available to one program
    overlaps: bool  # whether it supports programmatic dependent launch (PDL)
    hoppers: int = 0  # its multiprocessors, if it is a Hopper


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one program: `queries` tokens, `padded` heads of each, `keys` context tokens per turn."""

    queries: int
    padded: int  # query heads per key head, rounded up: queries x padded rows make one product
    keys: int
    warps: int
    stages: int  # turns whose keys and values are in flight
    programs: int  # programs that keep the GPU busy: with fewer tiles, contexts are split
    pdl: bool  # PDL: faster for small steps, slower for others
    ahead: bool = (
        False  # asks for the scores of a turn before it folds those of the one before (pipelined.py)
    )
    registers: int | None = None  # limit per thread: with 168, three programs of 4 warps fit
    pairs: bool = False  # reads a compressed cache two bytes at a time (pairs.py)
    specialized: bool = False  # some warps load and others attend (specialized.py)
    fetch: bool = False  # the L2 cache reads contexts before the kernel waits (fetch.py)


# For rows of one token, by the number of programs before contexts are split: the upper bound, then the tile's
# keys, warps, stages, programs and pdl. Beyond 320 the GPU is full, and what counts is how many programs run
# concurrently: 528, 792, 396 and 1056 with the four tiles there. A nearly empty last wave leaves the memory
# idle. Rows of mixed lengths, the usual case, end one by one, and prefer the taller tiles up to there.
TOKENS = (
    (16, (16, 1, 6, 400, True)),
    (160, (32, 1, 6, 400, True)),
    (320, (64, 2, 5, 264, False)),
    (528, (64, 2, 3, 264, False)),
    (840, (64, 2, 5, 264, False)),
    (1016, (64, 2, 3, 264, False)),
    (1056, (32, 1, 4, 264, False)),
    (1200, (64, 2, 5, 264, False)),
    (1700, (32, 1, 6, 264, False)),
)
MANY_TOKENS = (32, 1, 4, 264, False)
# The same over a compressed cache. With 8, 6 and 4 stages, 7, 11 and 12 programs run on each of 132 SMs. Up
# to 448, contexts are split until about that many run; beyond 800, the last wave decides again.
PACKED_TOKENS = (
    (64, (32, 1, 8, 528, True)),
    (160, (32, 1, 8, 528, False)),
    (448, (32, 1, 6, 1056, False)),
    (800, (32, 1, 6, 528, False)),
    (1450, (32, 1, 6, 264, False)),
    (1580, (32, 1, 4, 264, False)),
)
MANY_PACKED_TOKENS = (32, 1, 8, 264, False)


def for_tokens(spec: LayerSpec, rows: int, gpu: GpuLimits, itemsize: int, *, packed: bool = False) -> Tile:
    """Return the tile for rows of one token each. They are memory-bound, so much has to be in flight."""
    if spec.latent:
        return _for_latents(spec, rows, 1, gpu, itemsize)
    whole, pairs = rows * spec.kv_heads, packed and by_pairs(spec, itemsize)
    table, many = (PACKED_TOKENS, MANY_PACKED_TOKENS) if pairs else (TOKENS, MANY_TOKENS)
    keys, warps, stages, programs, pdl = next((how for most, how in table if whole <= most), many)
    padded = max(NARROW_PAIRS if pairs else NARROW, power(spec.heads // spec.kv_heads))
    key_bytes = row_bytes(spec, 1 if pairs else itemsize)
    keys, stages = _within(gpu.room, key_bytes, NARROW if itemsize > 2 else keys, stages)
    pdl = pdl and gpu.overlaps
    fetch = rows == 1 and pdl and not packed and _reads_ahead(spec, itemsize)
    return Tile(1, padded, keys, warps, stages, programs, pdl, pairs=pairs, fetch=fetch)


def _reads_ahead(spec: LayerSpec, itemsize: int) -> bool:
    short = spec.kv_heads * (spec.key_dim + spec.value_dim) * itemsize <= SHORT
    return switches.FETCH and _is_plain(spec) and spec.heads * spec.value_dim >= WIDE and short


def for_chunks(
    spec: LayerSpec, longest: int, mean: float, gpu: GpuLimits, itemsize: int, *, packed: bool = False
) -> Tile:
    """Return the tile for rows of several tokens: tall tiles, so that each key is read for many queries."""
    if spec.latent:
        return _for_latents(spec, FULL, longest, gpu, itemsize)
    padded = power(spec.heads // spec.kv_heads)
    if packed and by_pairs(spec, itemsize):
        return _for_packed_chunks(spec, padded, longest, gpu)
    wide = row_bytes(spec, itemsize) > 512  # dims beyond 128 in 16 bits: half the rows fill the registers
    needed = max(NARROW, padded * power(longest))
    plain = not (packed or wide or spec.reach or spec.slopes)
    ahead = gpu.overlaps and itemsize == 2 and plain and needed > 2 * NARROW
    registers = None
    if itemsize > 2:
        height, keys, warps, stages, programs = max(NARROW, padded), NARROW, 4, 2, 264
    elif needed <= 2 * NARROW:
        height, keys, warps, stages, programs = needed, 64, 2, 5, 264
    elif mean < LONG or wide or needed <= 64:
        height, keys, warps, stages, programs = 64, 32, 4, 3, 264
        registers = 168 if ahead else None
    elif ahead:
        height, keys, warps, stages, programs = 64, 64, 4, 3, 264
    else:
        height, keys, warps, stages, programs = 128, 128, 8, 3, 132
    room = gpu.room - height * dim_padded(spec.key_dim) * itemsize
    if ahead:  # values stay in flight for a turn longer than keys
        room -= keys * dim_padded(spec.value_dim) * itemsize
    keys, stages = _within(room, row_bytes(spec, itemsize), keys, stages)
    return Tile(height // padded, padded, keys, warps, stages, programs, False, ahead, registers)


def _for_latents(spec: LayerSpec, rows: int, longest: int, gpu: GpuLimits, itemsize: int) -> Tile:
    """Return a tile over latents: some heads of a token or, if there are few heads, of several tokens.

    `rows`: how many there are of at most `longest` tokens. For a token alone, blocks are read ahead, and
    little shared memory is used, which leaves more for the kernels before and after it.
    """
    tallest = NARROW if itemsize > 2 else 4 * NARROW if gpu.room >= ROOM_FOR_TALL else 2 * NARROW
    padded = min(tallest, max(NARROW, power(spec.heads)))
    queries = min(tallest // padded, power(longest))
    height, keys = queries * padded, NARROW if itemsize > 2 else 2 * NARROW
    key_bytes = (dim_padded(spec.value_dim) + dim_padded(spec.rotary_dim)) * itemsize
    held = max(1, min(2, (gpu.room - height * key_bytes) // (keys * key_bytes)))  # turns
    programs = min(MOST_PIECES * rows, 264 if height == NARROW else 132)
    each = -(-spec.heads // padded)  # programs of an item
    alone = rows == longest == 1 and gpu.overlaps
    stages = 2 if alone else 2 * held + 1  # blocks of a turn are read as many turns before its latents
    warps, split = 4 if height == NARROW else 8, max(1, programs // each)
    pdl, fetch = gpu.overlaps and rows <= FEW, alone and switches.FETCH
    return Tile(queries, padded, keys, warps, stages, split, pdl, fetch=fetch)


def _for_packed_chunks(spec: LayerSpec, padded: int, longest: int, gpu: GpuLimits) -> Tile:
    """Return a tile of few rows: converting to floats takes registers, which rows need, too."""
    key_bytes = row_bytes(spec, 1)
    most = max(padded, NARROW if key_bytes > 256 else 2 * NARROW)  # head dimensions beyond 128: half the rows
    height = min(max(NARROW_PAIRS, padded * power(longest)), most)
    keys, warps, stages = (32, 1, 6) if height <= NARROW else (64, 2, 5)
    room = gpu.room - height * dim_padded(spec.key_dim) * 2
    keys, stages = _within(room, key_bytes, keys, stages)
    return Tile(height // padded, padded, keys, warps, stages, 528, pdl=False, pairs=True)


def for_gathered(
    spec: LayerSpec,
    counts: np.ndarray,
    contexts: np.ndarray,
    gpu: GpuLimits,
    itemsize: int,
    *,
    packed: bool = False,
) -> Tile | None:
    """Return the tile for chunks whose contexts are worth gathering, or None."""
    group, key_bytes = spec.heads // spec.kv_heads, row_bytes(spec, itemsize)
    if not gpu.overlaps or itemsize != 2 or not {spec.key_dim, spec.value_dim} <= {64, 128}:
        return None
    if spec.reach or spec.slopes:
        return None
    pairs = (counts * (contexts - counts / 2)).sum() * group
    taken = int(contexts.sum()) * spec.kv_heads * key_bytes
    worth = GATHERED_PACKED if packed else GATHERED
    if pairs < worth * contexts.sum() or taken > MOST_GATHERED:
        return None
    padded, keys, stages = power(group), 64, 3
    room = gpu.room - keys * dim_padded(spec.value_dim) * itemsize
    keys, stages = _within(room, key_bytes, keys, stages)
    return Tile(64 // padded, padded, keys, 4, stages, 264, pdl=False, ahead=True)


def for_prompts(
    spec: LayerSpec, counts: np.ndarray, contexts: np.ndarray, gpu: GpuLimits, block_size: int
) -> Tile | None:
    """Return the tile for chunks in 16 bits if some warps are to load and others to attend, or None."""
    padded = power(spec.heads // spec.kv_heads)
    fits = _is_plain(spec) and padded <= 64
    if not (gpu.hoppers and fits and block_size >= 16 and power(block_size) == block_size):
        return None
    scores = (counts * (contexts - counts / 2)).sum() * spec.heads
    if scores < SPECIALIZED or counts.mean() * padded < 128:
        return None
    return Tile(128 // padded, padded, 128, 4, 2, gpu.hoppers, pdl=False, ahead=True, specialized=True)


def _is_plain(spec: LayerSpec) -> bool:
    """Whether heads have 128 numbers, as most do, and all keys are seen, with unchanged scores."""
    changed = spec.reach or spec.slopes or spec.softcap or spec.sinks
    return spec.key_dim == spec.value_dim == 128 and not changed


def by_pairs(spec: LayerSpec, itemsize: int) -> bool:
    """Whether queries of that item size can read a compressed cache two bytes at a time."""
    return itemsize == 2 and spec.key_dim % 2 == spec.value_dim % 2 == 0


def row_bytes(spec: LayerSpec, itemsize: int) -> int:
    """Return the shared memory per context token."""
    return (dim_padded(spec.key_dim) + dim_padded(spec.value_dim)) * itemsize


def dim_padded(dim: int) -> int:
    return max(NARROW, power(dim))


def _within(room: int, key_bytes: int, keys: int, stages: int) -> tuple[int, int]:
    """Reduce the stages, then the keys per turn, until they fit."""
    while keys * key_bytes > room and keys > NARROW:
        keys //= 2
    return keys, max(1, min(stages, room // (keys * key_bytes)))
