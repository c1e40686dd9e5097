"""Sums and gathers of long tensors over ranks: prompts, many rows, logits.

`exchange.py` sends 8 bytes for 4 bytes of numbers, which is fast for little and slow for much. Here a program
writes a whole piece into the other ranks' memory, then a number after it: a release that the receiver
acquires. So the numbers need no room for a turn, at the price of two more waits per piece.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.collective.exchange import (
    LIMIT,
    LOOKS,
    PROGRAMS,
    Inbox,
    clock,
    high,
    inbox_words,
    low,
    note,
    paired,
)
from engine.kernels.triton.launch import power

PLACE = 32768  # words of 4 bytes that a program sends at a time, at most
TILE = 2048  # words that it adds at a time
LEAST = 2**22  # bytes from which on this is faster


def bulk_words(ranks: int) -> int:
    """Words of 8 bytes behind the other inbox: a signal of each program and sender, then their pieces."""
    return PROGRAMS * ranks + PROGRAMS * 2 * ranks * PLACE // 2


@triton.jit
def _await(signal, control, turn):
    """Wait until a signal has this turn, or the next: its sender has all it needs from here for that one."""
    arrived = tl.atomic_add(signal, 0, sem="acquire", scope="sys") >= turn
    polls = 0
    until = turn.to(tl.int64) * 0
    while arrived == 0:
        arrived = tl.atomic_add(signal, 0, sem="acquire", scope="sys") >= turn
        polls += 1
        if polls % LOOKS == 0:
            now = tl.extra.cuda.globaltimer()
            if until == 0:
                until = now + LIMIT
            stop = tl.load(tl.load(control + 1).to(tl.pointer_type(tl.int32)), volatile=True)
            gone = tl.load(control, volatile=True)
            if (stop != 0) | (gone != 0) | (now > until):
                arrived = turn == turn
                tl.store(control, 1)
                tl.store(tl.load(control + 2).to(tl.pointer_type(tl.int32)), 1)


@triton.jit
def _exchange_bulk(
    out, term, addresses, inbox, counts, control, size, share,
    RANK: tl.constexpr, RANKS: tl.constexpr, SKIPPED: tl.constexpr, PLACE: tl.constexpr, PIECE: tl.constexpr,
    TILE: tl.constexpr, PROGRAMS: tl.constexpr, PAIRS: tl.constexpr, GATHER: tl.constexpr,
):  # fmt: skip
    began = clock()
    program = tl.program_id(0)
    turn = tl.load(counts + PROGRAMS + program)
    lane = tl.arange(0, TILE)
    for begin in range(program * PIECE, size, tl.num_programs(0) * PIECE):
        turn += 1
        last = tl.minimum(begin + PIECE, size)
        sent = ((program * 2 + (turn & 1)) * RANKS + RANK).to(tl.int64) * PLACE
        for other in tl.static_range(RANKS):
            if other != RANK:
                signals = tl.load(addresses + other).to(tl.pointer_type(tl.int64)) + SKIPPED
                pieces = tl.multiple_of((signals + PROGRAMS * RANKS).to(tl.pointer_type(tl.int32)), 16)
                for at in range(begin, last, TILE):
                    words = tl.load(term + at + lane, mask=at + lane < last, other=0)
                    tl.store(pieces + sent + (at - begin) + lane, words, mask=at + lane < last)
        tl.debug_barrier()  # every thread has written
        for other in tl.static_range(RANKS):
            if other != RANK:
                signals = tl.load(addresses + other).to(tl.pointer_type(tl.int64)) + SKIPPED
                tl.atomic_xchg(
                    signals + program * RANKS + RANK, turn.to(tl.int64), sem="release", scope="sys"
                )
        for sender in tl.static_range(RANKS):
            if sender != RANK:
                _await(inbox + SKIPPED + program * RANKS + sender, control, turn)
        tl.debug_barrier()
        pieces = (inbox + SKIPPED + PROGRAMS * RANKS).to(tl.pointer_type(tl.int32))
        for at in range(begin, last, TILE):
            there = at + lane < last
            first = tl.zeros([TILE], tl.float32)
            second = tl.zeros([TILE], tl.float32)
            for rank in tl.static_range(RANKS):
                if rank == RANK:
                    found = tl.load(term + at + lane, mask=there, other=0)
                else:
                    place = ((program * 2 + (turn & 1)) * RANKS + rank).to(tl.int64) * PLACE
                    found = tl.load(
                        pieces + place + (at - begin) + lane, mask=there, other=0, cache_modifier=".cg"
                    )
                if GATHER:
                    row = ((at + lane) // share).to(tl.int64)
                    to = out + (row * RANKS + rank) * share + (at + lane) % share
                    tl.store(to, found, mask=there)
                elif PAIRS:
                    first += low(found)
                    second += high(found)
                else:
                    first += found.to(tl.float32, bitcast=True)
            if not GATHER:
                total = paired(first, second) if PAIRS else first.to(tl.int32, bitcast=True)
                tl.store(out + at + lane, total, mask=there)
    tl.debug_barrier()
    tl.store(counts + PROGRAMS + program, turn)
    note(control, began, size, RANKS - 1)


def piece_of(size: int) -> int:
    """Return how many words a program sends at a time, so that all programs have some."""
    return min(PLACE, max(TILE, power(triton.cdiv(size, PROGRAMS))))


def sum_bulk(term: Tensor, inbox: Inbox) -> Tensor:
    """Like `exchange_sum`."""
    out = torch.empty_like(term)
    _launch(out, term, inbox)
    return out


def gather_bulk(part: Tensor, inbox: Inbox) -> Tensor:
    """Like `exchange_gather`."""
    rows, share = part.shape
    out = torch.empty(rows, inbox.ranks * share, dtype=part.dtype, device=part.device)
    _launch(out, part, inbox, part.nbytes // 4 // rows)
    return out


def _launch(out: Tensor, term: Tensor, inbox: Inbox, share: int = 0) -> None:
    size = term.nbytes // 4
    piece = piece_of(size)
    _exchange_bulk[(min(PROGRAMS, triton.cdiv(size, piece)),)](
        out.view(-1).view(torch.int32), term.view(-1).view(torch.int32),
        inbox.addresses, inbox.words, inbox.counts, inbox.control, size, share,
        RANK=inbox.rank, RANKS=inbox.ranks, SKIPPED=inbox_words(inbox.ranks), PLACE=PLACE, PIECE=piece,
        TILE=TILE, PROGRAMS=PROGRAMS, PAIRS=term.dtype is torch.bfloat16, GATHER=share > 0, num_warps=8,
    )  # fmt: skip
