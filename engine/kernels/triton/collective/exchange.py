"""Sums and gathers over the ranks of a model, through memory that the GPUs write into each other.

A rank has an inbox with a place for each program, each sender and two turns. A program writes its numbers
into the same program's place at all other ranks, then polls its own. A word of 8 bytes, which is always
written whole, holds 4 bytes of numbers and the number of the turn, so no fence and no separate signal is
needed, and a word that has not arrived has an older number. Turns are counted in device memory, so a graph
that is replayed continues the count.

Two places are enough: a program that writes to a place again has received the turn in between, so the
sender of that has finished the turn before. All ranks add in rank order and round alike: they get the same
bits. No wait is endless: after LIMIT, or when the host sets the stop word, a program gives up, and all later
exchanges end at once, with wrong numbers, until the host has reset them.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.quantize_fp8 import fp8_scale, to_fp8
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import Normed, empty_normed

PROGRAMS = 128  # at most; all of them must run at the same time, so a GPU needs as many SMs
WORDS = 8192  # of a place: a row of 16,384 numbers of bfloat16
FEW = 32  # programs, up to which each polls all its words
TILE = 2048  # words of a turn, where rows do not matter
LIMIT = tl.constexpr(60 * 10**9)  # nanoseconds
LOOKS = tl.constexpr(1024)  # polls between two looks at the stop word, which is in host memory


class Inbox(NamedTuple):
    """What a rank's kernels need to meet the others."""

    rank: int
    ranks: int
    words: Tensor  # the own inbox, int64
    addresses: Tensor  # of all ranks' inboxes, as this GPU sees them, int64
    counts: Tensor  # turns of each program so far, here and in bulk.py, int32
    # int64: whether a program has given up; addresses of the stop word and of the report; nanoseconds in
    # exchanges, and bytes sent
    control: Tensor


def inbox_words(ranks: int) -> int:
    return PROGRAMS * 2 * ranks * WORDS


@triton.jit
def nanoseconds():
    """Like globaltimer of Triton, which its interpreter lacks."""
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def clock():
    """When an exchange begins, in nanoseconds. Its first program is the one that is timed."""
    now = tl.full([], 0, tl.int64)
    if tl.program_id(0) == 0:
        now = nanoseconds()
    return now


@triton.jit
def note(control, began, size, COPIES: tl.constexpr):
    """Add an exchange to the time and the bytes so far. `size`: its words of 4 bytes, sent `COPIES` times.

    Atomic, as nothing waits for such an addition: a load before a store would take as long as a sum.
    """
    if tl.program_id(0) == 0:
        tl.atomic_add(control + 3, nanoseconds() - began, sem="relaxed")
        tl.atomic_add(control + 4, tl.cast(size, tl.int64) * (4 * COPIES), sem="relaxed")


@triton.jit
def low(word):
    """The first of two bfloat16 numbers in a word of 4 bytes, as float32."""
    return (word << 16).to(tl.float32, bitcast=True)


@triton.jit
def high(word):
    return (word & -65536).to(tl.float32, bitcast=True)


@triton.jit
def paired(first, second):
    """Two float32 numbers, rounded to bfloat16, in a word of 4 bytes."""
    a = first.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 65535
    b = second.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
    return (b << 16) | a


@triton.jit
def _place(sender, turn, RANKS: tl.constexpr, WORDS: tl.constexpr):
    """Where a sender's words for this program are in an inbox."""
    return ((tl.program_id(0) * 2 + (turn & 1)) * RANKS + sender).to(tl.int64) * WORDS


@triton.jit
def send(addresses, numbers, at, there, turn, RANK: tl.constexpr, RANKS: tl.constexpr, WORDS: tl.constexpr):
    """Write words of 4 bytes into all other ranks' inboxes."""
    words = (turn.to(tl.int64) << 32) | (numbers.to(tl.int64) & 0xFFFFFFFF)
    for other in tl.static_range(RANKS):
        if other != RANK:
            inbox = tl.load(addresses + other).to(tl.pointer_type(tl.int64))
            inbox = tl.multiple_of(inbox, 16)
            tl.store(inbox + _place(RANK, turn, RANKS, WORDS) + at, words, mask=there)


@triton.jit
def receive(
    inbox, control, sender, at, there, last, turn,
    RANKS: tl.constexpr, WORDS: tl.constexpr, PROBE: tl.constexpr,
):  # fmt: skip
    """Wait for a sender's words; return their numbers.

    `PROBE`: poll only the last word at first. Many programs that poll all words slow down their arrival.
    """
    place = inbox + _place(sender, turn, RANKS, WORDS)
    if PROBE:
        probed = (tl.load(place + last, volatile=True) >> 32) == turn
        polls = turn * 0
        while (probed == 0) & (polls < LOOKS):  # then the loop below looks whether to stop
            probed = (tl.load(place + last, volatile=True) >> 32) == turn
            polls += 1
    place += at
    words = tl.load(place, mask=there, other=0, volatile=True)
    late = tl.max((there & ((words >> 32) != turn)).to(tl.int32), 0)
    polls = late * 0
    until = late.to(tl.int64) * 0
    while late != 0:
        words = tl.load(place, mask=there, other=0, volatile=True)
        late = tl.max((there & ((words >> 32) != turn)).to(tl.int32), 0)
        polls += 1
        if polls % LOOKS == 0:
            now = tl.extra.cuda.globaltimer()
            if until == 0:
                until = now + LIMIT
            stop = tl.load(tl.load(control + 1).to(tl.pointer_type(tl.int32)), volatile=True)
            gone = tl.load(control, volatile=True)
            if (stop != 0) | (gone != 0) | (now > until):
                late = late * 0
                tl.store(control, 1)
                tl.store(tl.load(control + 2).to(tl.pointer_type(tl.int32)), 1)
    return words.to(tl.int32)


@triton.jit
def _sum_ranks(
    out, term, addresses, inbox, counts, control, size,
    RANK: tl.constexpr, RANKS: tl.constexpr, WORDS: tl.constexpr, TILE: tl.constexpr, PAIRS: tl.constexpr,
    PROBE: tl.constexpr,
):  # fmt: skip
    began = clock()
    turn = tl.load(counts + tl.program_id(0))
    for begin in range(tl.program_id(0) * TILE, size, tl.num_programs(0) * TILE):
        turn += 1
        at = tl.arange(0, TILE)
        there = begin + at < size
        last = tl.minimum(size - begin, TILE) - 1
        own = tl.load(term + begin + at, mask=there, other=0)
        send(addresses, own, at, there, turn, RANK, RANKS, WORDS)
        first = tl.zeros([TILE], tl.float32)
        second = tl.zeros([TILE], tl.float32)
        for rank in tl.static_range(RANKS):
            if rank == RANK:
                found = own
            else:
                found = receive(inbox, control, rank, at, there, last, turn, RANKS, WORDS, PROBE)
            if PAIRS:
                first += low(found)
                second += high(found)
            else:
                first += found.to(tl.float32, bitcast=True)
        total = paired(first, second) if PAIRS else first.to(tl.int32, bitcast=True)
        tl.store(out + begin + at, total, mask=there)
    tl.debug_barrier()  # every thread has read the count
    tl.store(counts + tl.program_id(0), turn)
    note(control, began, size, 2 * (RANKS - 1))  # with the turn in each word


def exchange_sum(term: Tensor, inbox: Inbox) -> Tensor:
    """The sum of all ranks' terms, in bfloat16 or float32, added in float32."""
    out, size = torch.empty_like(term), term.nbytes // 4
    _sum_ranks[(min(PROGRAMS, triton.cdiv(size, TILE)),)](
        out.view(-1).view(torch.int32), term.view(-1).view(torch.int32),
        inbox.addresses, inbox.words, inbox.counts, inbox.control, size,
        RANK=inbox.rank, RANKS=inbox.ranks, WORDS=WORDS, TILE=TILE, PAIRS=term.dtype is torch.bfloat16,
        PROBE=size > FEW * TILE, num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _gather_ranks(
    out, part, addresses, inbox, counts, control, size, share,
    RANK: tl.constexpr, RANKS: tl.constexpr, WORDS: tl.constexpr, TILE: tl.constexpr, PROBE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    began = clock()
    turn = tl.load(counts + tl.program_id(0))
    for begin in range(tl.program_id(0) * TILE, size, tl.num_programs(0) * TILE):
        turn += 1
        at = tl.arange(0, TILE)
        there = begin + at < size
        last = tl.minimum(size - begin, TILE) - 1
        own = tl.load(part + begin + at, mask=there, other=0)
        send(addresses, own, at, there, turn, RANK, RANKS, WORDS)
        row = ((begin + at) // share).to(tl.int64)
        to = out + row * (share * RANKS) + (begin + at) % share
        tl.store(to + RANK * share, own, mask=there)
        for rank in tl.static_range(RANKS):
            if rank != RANK:
                found = receive(inbox, control, rank, at, there, last, turn, RANKS, WORDS, PROBE)
                tl.store(to + rank * share, found, mask=there)
    tl.debug_barrier()
    tl.store(counts + tl.program_id(0), turn)
    note(control, began, size, 2 * (RANKS - 1))


def exchange_gather(part: Tensor, inbox: Inbox, *, pdl: bool = False) -> Tensor:
    """[rows, share] of each rank -> [rows, ranks * share]. A row has a multiple of 4 bytes."""
    rows, share = part.shape
    out = torch.empty(rows, inbox.ranks * share, dtype=part.dtype, device=part.device)
    size = part.nbytes // 4
    _gather_ranks[(min(PROGRAMS, triton.cdiv(size, TILE)),)](
        out.view(-1).view(torch.int32), part.view(-1).view(torch.int32),
        inbox.addresses, inbox.words, inbox.counts, inbox.control, size, size // rows,
        RANK=inbox.rank, RANKS=inbox.ranks, WORDS=WORDS, TILE=TILE, PROBE=size > FEW * TILE,
        PDL=pdl, num_warps=8, **launch(pdl),
    )  # fmt: skip
    return out


@triton.jit
def _sum_norm(
    out, steps, x, parts, weight, addresses, inbox, counts, control, rows, part_stride, eps,
    RANK: tl.constexpr, RANKS: tl.constexpr, WORDS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    PARTS: tl.constexpr, WIDE: tl.constexpr, ROUNDED: tl.constexpr, PROBE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    HALF: tl.constexpr = WIDTH // 2
    at = tl.arange(0, PADDED)
    there = at < HALF
    scale = tl.load(weight + at, mask=there, other=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    began = clock()
    turn = tl.load(counts + tl.program_id(0))
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        turn += 1
        last = HALF - 1
        here = tl.cast(row, tl.int64) * HALF + at
        if WIDE:  # in float32, two numbers in 8 bytes
            first = tl.zeros([PADDED], tl.float32)
            second = tl.zeros([PADDED], tl.float32)
            for part in tl.static_range(PARTS):
                both = tl.load(parts + part * part_stride + here, mask=there, other=0)
                first += both.to(tl.int32).to(tl.float32, bitcast=True)
                second += (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            own = paired(first, second)
        else:
            own = tl.load(parts + here, mask=there, other=0)
        send(addresses, own, at, there, turn, RANK, RANKS, WORDS)
        before = tl.load(x + here, mask=there, other=0)
        first = tl.zeros([PADDED], tl.float32)
        second = tl.zeros([PADDED], tl.float32)
        for rank in tl.static_range(RANKS):
            if rank == RANK:
                found = own
            else:
                found = receive(inbox, control, rank, at, there, last, turn, RANKS, WORDS, PROBE)
            first += low(found)
            second += high(found)
        term = paired(first, second)
        value = paired(low(before) + low(term), high(before) + high(term))
        tl.store(x + here, value, mask=there)
        first = low(value)
        second = high(value)
        shrink = tl.rsqrt(tl.sum(first * first + second * second) / WIDTH + eps)
        even = paired(first * shrink, second * shrink)
        result = paired(low(even) * low(scale), high(even) * high(scale))
        if ROUNDED:
            step = fp8_scale(tl.maximum(tl.abs(low(result)), tl.abs(high(result))), 0)
            tl.store(steps + row, step)
            # Not packed into 2-byte words with shifts: ptxas 12.8 miscompiles shifts after the conversion.
            both = tl.interleave(to_fp8(low(result), step), to_fp8(high(result), step))
            whole = tl.arange(0, 2 * PADDED)
            tl.store(out + tl.cast(row, tl.int64) * WIDTH + whole, both, mask=whole < WIDTH)
        else:
            tl.store(out + here, result, mask=there)
    tl.debug_barrier()
    tl.store(counts + tl.program_id(0), turn)
    note(control, began, rows * HALF, 2 * (RANKS - 1))


def exchange_sum_norm(
    x: Tensor,
    parts: Tensor,
    weight: Tensor,
    eps: float,
    inbox: Inbox,
    *,
    rounded: bool,
    pdl: bool = False,
) -> Normed:
    """Add the sum of all ranks' terms to x, in place; return its norm. All in bfloat16, [rows, width].

    `parts`: the own term, [parts, rows, width]; several parts are in float32 and added first. `rounded`: the
    norm is rounded to FP8.
    """
    rows, width = x.shape
    wide = parts.dtype is torch.float32
    out, padded = empty_normed(rows, width, like=x, rounded=rounded), power(width // 2)
    if width % 2 or padded > WORDS:
        raise ValueError(f"ranks cannot exchange rows of {width} numbers")
    _sum_norm[(min(PROGRAMS, rows),)](
        out.values if rounded else out.values.view(torch.int32), x if out.steps is None else out.steps,
        x.view(torch.int32), parts.view(torch.int64 if wide else torch.int32),
        weight.view(torch.int32), inbox.addresses, inbox.words, inbox.counts, inbox.control, rows,
        parts.stride(0) // 2, eps,
        RANK=inbox.rank, RANKS=inbox.ranks, WORDS=WORDS, WIDTH=width, PADDED=padded, PARTS=len(parts),
        WIDE=wide, ROUNDED=rounded, PROBE=rows > FEW, PDL=pdl,
        num_warps=max(1, min(8, padded // 128)), **launch(pdl),
    )  # fmt: skip
    return out
