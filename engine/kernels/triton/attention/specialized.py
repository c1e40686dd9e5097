"""Attention of prompts on Hopper: four warps load keys and values, and two groups of four warps attend.

While one group computes exponentials, the products of the other keep the tensor cores busy. Keys and values
are read from the cache's blocks, or from gathered contexts (gather.py), by TMA.
"""
# mypy: disable-error-code="no-untyped-def, assignment"
# Gluon interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.triton.attention.gather import gather
from engine.kernels.triton.attention.work_plan import AttentionWork
from engine.kv.store import KVLayer

ROWS = gl.constexpr(64)  # of a group of warps: heads of tokens, as in paged.py
WIDE = gl.constexpr(64)  # numbers of a key or value that one request of TMA loads
FOR_LOADS, FOR_ALL = gl.constexpr(24), 168  # registers of a thread that loads, and of all on average
OF_KEYS, OF_QUERIES = gl.NVMMASharedLayout(128, 16, 2), gl.NVMMASharedLayout(128, 16, 4)  # what TMA writes


@gluon.jit
def _nth(nth, programs):
    """The place of a program's nth item in the list: back and forth, so that all have about as much to do."""
    me = gl.program_id(0)
    return nth * programs + gl.where(nth % 2 == 0, me, programs - 1 - me)


@gluon.jit
def _share(count, programs):
    """How many of the items are this program's."""
    whole = count // programs
    return whole + (_nth(whole, programs) < count).to(gl.int32)


@gluon.jit
def _load(
    of, smem, full, empty, q, q_smem, q_full, q_empty, tables, items, count, programs, table_stride,
    PANEL: gl.constexpr, WITH_Q: gl.constexpr, KV_HEADS: gl.constexpr, PADDED: gl.constexpr,
    DIM: gl.constexpr, BLOCK: gl.constexpr, GATHERED: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load WIDE numbers of each key or value, as soon as there is room."""
    BOX: gl.constexpr = of.block_type.shape[0]
    BOXES: gl.constexpr = KEYS // BOX
    PANELS: gl.constexpr = DIM // WIDE
    boxes = smem._reinterpret(of.dtype, [STAGES * PANELS * BOXES, BOX, WIDE], of.layout)
    turn = 0
    for nth in range(_share(count, programs)):
        place = _nth(nth, programs)
        item = items + place // KV_HEADS * 8
        kv_head = place % KV_HEADS
        column = kv_head * DIM + PANEL * WIDE
        begin = gl.load(item + 4)
        end = gl.load(item + 5)
        extra = gl.load(item + 7)  # where the gathered context starts, or how long the context is
        table = tables
        if not GATHERED:
            table = tables + gl.load(item).to(gl.int64) * table_stride
        for at in range(begin, end, KEYS):
            rows = ()
            for box in gl.static_range(BOXES):
                if GATHERED:
                    rows = rows + (extra + at + box * BOX,)  # noqa: RUF005
                else:
                    block = gl.load(table + gl.minimum(at + box * BOX, extra - 1) // BLOCK)
                    rows = rows + (block * BLOCK + at % BLOCK + box * BOX % BLOCK,)  # noqa: RUF005
            stage = turn % STAGES
            mbarrier.wait(empty.index(stage), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), KEYS * WIDE * 2)
            for box in gl.static_range(BOXES):
                to = boxes.index((stage * PANELS + PANEL) * BOXES + box)
                tma.async_copy_global_to_shared(of, [rows[box], column], full.index(stage), to)
            turn += 1
            if WITH_Q:  # noqa: SIM102  known when compiled
                if at == begin:
                    _load_queries(q, q_smem, q_full, q_empty, nth, item, kv_head, PADDED, DIM)


@gluon.jit
def _load_queries(
    q, q_smem, full, empty, nth, item, kv_head, PADDED: gl.constexpr, DIM: gl.constexpr
):  # fmt: skip
    PANELS: gl.constexpr = DIM // WIDE
    TOKENS: gl.constexpr = ROWS // PADDED
    boxes = q_smem._reinterpret(q.dtype, [2 * PANELS, TOKENS, 1, PADDED, WIDE], q.layout)
    token = gl.load(item + 1)
    mbarrier.wait(empty, (nth & 1) ^ 1)
    mbarrier.expect(full, 2 * ROWS * DIM * 2)
    for group in gl.static_range(2):
        for panel in gl.static_range(PANELS):
            corner = [token + group * TOKENS, kv_head, 0, panel * WIDE]
            tma.async_copy_global_to_shared(q, corner, full, boxes.index(group * PANELS + panel))


@gluon.jit
def _weighed(best, total, score, scale):
    """Add scores to the softmax, like online_softmax.weighed."""
    higher = gl.maximum(best, gl.max(score, 1) * scale)
    weight = gl.exp2(score * scale - higher[:, None])
    fade = gl.exp2(best - higher)
    return higher, total * fade + gl.sum(weight, 1), weight, fade


@gluon.jit
def _seen(score, at, position, KEYS: gl.constexpr, layout: gl.constexpr):
    """Make scores very low, also NaN, where a query does not see the key.

    Computed, since the compiler would pack the bits of a mask into words.
    """
    key = gl.arange(0, KEYS, gl.SliceLayout(0, layout)).to(gl.float32)
    ahead = (position - at).to(gl.float32) + 0.5
    return gl.minimum(score, (ahead[:, None] - key[None, :]) * 1e34)


@gluon.jit
def _before(total):
    """Have what computes `total`, which is never negative, happen before what follows.

    The assembler would wait for products first. It does not move a wait over an access to memory, not even
    one that never happens.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .u32 at; mov.u32 at, 0; setp.lt.f32 p, $1, 0f00000000;"
        " @p st.shared.f32 [at], $1; mov.f32 $0, $1; }",
        "=f,f", [total], gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _blank(v_boxes, first, at, context, BOX: gl.constexpr, BOXES: gl.constexpr, PANELS: gl.constexpr):
    """Set values beyond the context to 0, because NaN times a weight of 0 is NaN."""
    by: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // WIDE, WIDE // 8], [4, 1], [1, 0])
    line = gl.arange(0, BOX, gl.SliceLayout(1, by))
    for box in range((context - at) // BOX, BOXES):
        there = at + box * BOX + line < context
        for panel in gl.static_range(PANELS):
            part = v_boxes.index(first + panel * BOXES + box)
            held = part.load(by)
            part.store(gl.where(there[:, None], held, gl.zeros_like(held)))


@gluon.jit
def _turn(
    best, total, mixed, weight, fade, query, none, k_smem, v_smem, k_full, k_empty, v_full, v_empty, turns,
    turn, my_turn, at, position, scale,
    WHICH: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
    scores: gl.constexpr, mixing: gl.constexpr,
):  # fmt: skip
    """Ask for these keys' scores and for products with the weights before, and compute new weights."""
    stage, before = turn % STAGES, (turn - 1) % STAGES
    mbarrier.wait(k_full.index(stage), turn // STAGES & 1)
    mbarrier.wait(turns.index(WHICH), my_turn & 1)
    keys = k_smem.index(stage).permute((1, 0))
    asked = warpgroup_mma(query, keys, none, use_acc=False, is_async=True)
    mixed = mixed * gl.convert_layout(fade, gl.SliceLayout(1, mixing))[:, None]
    mbarrier.wait(v_full.index(before), (turn - 1) // STAGES & 1)
    adding = warpgroup_mma(weight, v_smem.index(before), mixed, is_async=True)
    mbarrier.arrive(turns.index(1 - WHICH), count=1)
    score = warpgroup_mma_wait(1, deps=(asked,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    if MASKED:
        score = _seen(score, at, position, KEYS, scores)
    best, total, new, fade = _weighed(best, total, score, scale)
    total = _before(total)
    mixed, weight, new = warpgroup_mma_wait(0, deps=(adding, weight, new))
    mbarrier.arrive(v_empty.index(before), count=1)
    return best, total, mixed, gl.convert_layout(new.to(weight.dtype), weight.type.layout), fade


@gluon.jit
def _attend(
    out, mixes, sums, items, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns,
    count, programs, scale,
    WHICH: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PADDED: gl.constexpr,
    DIM: gl.constexpr, BOX: gl.constexpr, GATHERED: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Attend with half the rows of each item."""
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    mixing: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    lines: gl.constexpr = gl.SliceLayout(1, scores)
    kind: gl.constexpr = q_smem.dtype
    PANELS: gl.constexpr = DIM // WIDE
    BOXES: gl.constexpr = KEYS // BOX
    v_boxes = v_smem._reinterpret(kind, [STAGES * PANELS * BOXES, BOX, WIDE], tile)
    query = q_smem.index(WHICH)
    none = gl.zeros([ROWS, KEYS], gl.float32, scores)
    turn = 0  # of keys, in all
    my_turn = 1 - WHICH  # at the tensor cores
    for nth in range(_share(count, programs)):
        place = _nth(nth, programs)
        item = items + place // KV_HEADS * 8
        kv_head = place % KV_HEADS
        token = gl.load(item + 1).to(gl.int64)
        queries = gl.load(item + 2)
        first = gl.load(item + 3)
        begin = gl.load(item + 4)
        end = gl.load(item + 5)
        slot = gl.load(item + 6).to(gl.int64)
        context = gl.load(item + 7)
        position = first + (WHICH * ROWS + gl.arange(0, ROWS, lines)) // PADDED
        # Full turns before the first query are visible to all of it.
        seen_by_all = gl.minimum(end, first + WHICH * ROWS // PADDED + 1)
        plain = begin + gl.maximum(seen_by_all - begin, 0) // KEYS * KEYS

        stage = turn % STAGES
        mbarrier.wait(q_full, nth & 1)
        mbarrier.wait(k_full.index(stage), turn // STAGES & 1)
        keys = k_smem.index(stage).permute((1, 0))
        asked = warpgroup_mma(query, keys, none, use_acc=False, is_async=True)
        score = _seen(warpgroup_mma_wait(0, deps=(asked,)), begin, position, KEYS, scores)
        mbarrier.arrive(k_empty.index(stage), count=1)
        # Finite, so that a row that sees no key of a turn does not compute -inf - -inf.
        best = gl.full([ROWS], -1e30, gl.float32, lines)
        total = gl.zeros([ROWS], gl.float32, lines)
        best, total, weight, fade = _weighed(best, total, score, scale)
        weight = gl.convert_layout(weight.to(kind), gl.DotOperandLayout(0, mixing, 2))
        mixed = gl.zeros([ROWS, DIM], gl.float32, mixing)
        for at in range(begin + KEYS, plain, KEYS):
            turn += 1
            best, total, mixed, weight, fade = _turn(
                best, total, mixed, weight, fade, query, none, k_smem, v_smem, k_full, k_empty, v_full,
                v_empty, turns, turn, my_turn, at, position, scale, WHICH, KEYS, STAGES, False, scores,
                mixing,
            )  # fmt: skip
            my_turn += 1
        for at in range(gl.maximum(begin + KEYS, plain), end, KEYS):
            turn += 1
            best, total, mixed, weight, fade = _turn(
                best, total, mixed, weight, fade, query, none, k_smem, v_smem, k_full, k_empty, v_full,
                v_empty, turns, turn, my_turn, at, position, scale, WHICH, KEYS, STAGES, True, scores,
                mixing,
            )  # fmt: skip
            my_turn += 1
        mbarrier.arrive(q_empty, count=1)

        mixed = mixed * gl.convert_layout(fade, gl.SliceLayout(1, mixing))[:, None]
        stage = turn % STAGES
        mbarrier.wait(v_full.index(stage), turn // STAGES & 1)
        if not GATHERED:
            last = begin + (end - begin - 1) // KEYS * KEYS
            if last + KEYS > context:
                _blank(v_boxes, stage * PANELS * BOXES, last, context, BOX, BOXES, PANELS)
                fence_async_shared()
        adding = warpgroup_mma(weight, v_smem.index(stage), mixed, is_async=True)
        mixed, weight = warpgroup_mma_wait(0, deps=(adding, weight))
        mbarrier.arrive(v_empty.index(stage), count=1)
        turn += 1
        _store(
            out, mixes, sums, best, total, mixed, token, queries, slot, kv_head,
            WHICH, KV_HEADS, GROUP, PADDED, DIM, mixing,
        )  # fmt: skip


@gluon.jit
def _store(
    out, mixes, sums, best, total, mixed, token, queries, slot, kv_head,
    WHICH: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PADDED: gl.constexpr,
    DIM: gl.constexpr, mixing: gl.constexpr,
):  # fmt: skip
    """Store the result, or the partial one of a split context."""
    lines: gl.constexpr = gl.SliceLayout(1, mixing)
    QUERIES: gl.constexpr = 2 * ROWS // PADDED
    line = WHICH * ROWS + gl.arange(0, ROWS, lines)
    nth = line // PADDED
    head = kv_head * GROUP + line % PADDED
    real = (nth < queries) & (line % PADDED < GROUP)
    column = gl.arange(0, DIM, gl.SliceLayout(0, mixing))
    total = gl.convert_layout(total, lines)
    if slot < 0:
        row = (token + nth) * (KV_HEADS * GROUP) + head
        result = (mixed * (1 / total)[:, None]).to(out.dtype.element_ty)
        gl.store(out + row[:, None] * DIM + column[None, :], result, mask=real[:, None])
    else:
        row = (slot * QUERIES + nth) * (KV_HEADS * GROUP) + head
        gl.store(mixes + row[:, None] * DIM + column[None, :], mixed, mask=real[:, None])
        gl.store(sums + row * 2, gl.convert_layout(best, lines), mask=real)
        gl.store(sums + row * 2 + 1, total, mask=real)


@gluon.jit(do_not_specialize=["table_stride", "count", "programs"])
def _attend_specialized(
    out, mixes, sums, q, keys, values, tables, items, scale, count, programs, table_stride,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, PADDED: gl.constexpr, DIM: gl.constexpr,
    BLOCK: gl.constexpr, GATHERED: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Like paged._attend, for heads of 128 without windows and the like, and an item's key heads in turn."""
    kind: gl.constexpr = keys.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    BOX: gl.constexpr = keys.block_type.shape[0]
    q_smem = gl.allocate_shared_memory(kind, [2, ROWS, DIM], tile)
    k_smem = gl.allocate_shared_memory(kind, [STAGES, KEYS, DIM], tile)
    v_smem = gl.allocate_shared_memory(kind, [STAGES, KEYS, DIM], tile)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=2)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=2)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_attend, (
                out, mixes, sums, items, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full,
                v_empty, turns, count, programs, scale, 0, KV_HEADS, GROUP, PADDED, DIM, BOX, GATHERED, KEYS,
                STAGES,
            )),
            (_attend, (
                out, mixes, sums, items, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full,
                v_empty, turns, count, programs, scale, 1, KV_HEADS, GROUP, PADDED, DIM, BOX, GATHERED, KEYS,
                STAGES,
            )),
            (_load, (
                keys, k_smem, k_full, k_empty, q, q_smem, q_full, q_empty, tables, items, count, programs,
                table_stride, 0, True, KV_HEADS, PADDED, DIM, BLOCK, GATHERED, KEYS, STAGES,
            )),
            (_load, (
                keys, k_smem, k_full, k_empty, q, q_smem, q_full, q_empty, tables, items, count, programs,
                table_stride, 1, False, KV_HEADS, PADDED, DIM, BLOCK, GATHERED, KEYS, STAGES,
            )),
            (_load, (
                values, v_smem, v_full, v_empty, q, q_smem, q_full, q_empty, tables, items, count, programs,
                table_stride, 0, False, KV_HEADS, PADDED, DIM, BLOCK, GATHERED, KEYS, STAGES,
            )),
            (_load, (
                values, v_smem, v_full, v_empty, q, q_smem, q_full, q_empty, tables, items, count, programs,
                table_stride, 1, False, KV_HEADS, PADDED, DIM, BLOCK, GATHERED, KEYS, STAGES,
            )),
        ],
        [4, 1, 1, 1, 1],
        [240, FOR_LOADS, FOR_LOADS, FOR_LOADS, FOR_LOADS],
    )  # fmt: skip


def attend_prompts(
    out: Tensor, mixes: Tensor, sums: Tensor, q: Tensor, layer: KVLayer, tables: Tensor, work: AttentionWork,
    scale: float,
) -> None:  # fmt: skip
    """Fill `out`, or the partial results, for all items of the work."""
    assert layer.sinks is None, "a plan of a spec without sinks, for a layer that has them"
    spec, tile, keys, values = layer.spec, work.tile, layer.keys, layer.values
    group, dim, box = spec.heads // spec.kv_heads, spec.key_dim, min(layer.block_size, tile.keys)
    if work.spans is not None:
        box = tile.keys
        keys, values = (each.base for each in gather(layer, tables, work.spans, box, q.dtype))
    boxes = [
        TensorDescriptor.from_tensor(each.view(-1, spec.kv_heads * dim), [box, WIDE.value], OF_KEYS)
        for each in (keys, values)
    ]
    queries = TensorDescriptor(
        q, [len(q), spec.kv_heads, group, dim], [q.stride(0), group * q.stride(1), q.stride(1), 1],
        [ROWS.value // tile.padded, 1, tile.padded, WIDE.value], OF_QUERIES,
    )  # fmt: skip
    count = spec.kv_heads * len(work.items)
    programs = min(tile.programs, count)
    _attend_specialized[(programs,)](
        out, mixes, sums, queries, *boxes, tables, work.items, scale, count, programs, tables.stride(0),
        KV_HEADS=spec.kv_heads, GROUP=group, PADDED=tile.padded, DIM=dim, BLOCK=layer.block_size,
        GATHERED=work.spans is not None, KEYS=tile.keys, STAGES=tile.stages,
        num_warps=4, maxnreg=FOR_ALL,
    )  # fmt: skip
