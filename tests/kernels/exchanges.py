"""Exchanges of one rank in the interpreter's process, which has the inboxes of all ranks."""

from typing import Any

import torch
from torch import Tensor

Places = dict[tuple[int, int], Tensor]  # by program and turn: words of 4 bytes


def exchanged(
    rank: int, turns: int, call: str, own: tuple[Any, ...], parts: list[Places], rounded: bool | None = None
) -> tuple[Any, ...]:
    """Run an exchange of one rank in the interpreter's process.

    Returns its result, the changed stream if there is one, whether it sent `parts[rank]` to all others and
    nothing else, and its counts after it, with the time and the bytes at the end.
    """
    from engine.kernels.triton.collective import exchange

    ranks = len(parts)
    shape = (exchange.PROGRAMS, 2, ranks, exchange.WORDS)
    inboxes = [torch.full(shape, (turns << 32) + 12345) for _ in range(ranks)]
    before = inboxes[0].clone()
    for sender, places in enumerate(parts):
        if sender != rank:
            _fill(inboxes[rank], sender, places)
    addresses = torch.tensor([each.data_ptr() for each in inboxes])
    counts = torch.full((exchange.PROGRAMS,), turns, dtype=torch.int32)
    control = torch.zeros(5, dtype=torch.int64)
    inbox = exchange.Inbox(rank, ranks, inboxes[rank], addresses, counts, control)
    with torch.inference_mode():
        found = getattr(exchange, call)(*own, inbox, **({} if rounded is None else {"rounded": rounded}))
    _fill(before, rank, parts[rank])
    sent = all(torch.equal(each, before) for other, each in enumerate(inboxes) if other != rank)
    return found, own[0], sent, torch.cat((counts, control[3:]))


def _fill(inbox: Tensor, sender: int, places: Places) -> None:
    for (program, turn), words in places.items():
        inbox[program, turn & 1, sender, : len(words)] = (turn << 32) | (words.long() & 0xFFFFFFFF)


def exchanged_bulk(rank: int, turns: int, terms: list[Tensor], ahead: int) -> tuple[Tensor, bool, int]:
    """Run a sum of long tensors. Returns it, whether the own pieces and signals were sent, and how many bytes
    it has counted.

    `ahead`: turns that the other ranks are ahead by, so their signals are those of later turns.
    """
    from engine.kernels.triton.collective import bulk, exchange

    ranks, programs, skipped = len(terms), exchange.PROGRAMS, exchange.inbox_words(len(terms))
    piece = bulk.piece_of(terms[0].nbytes // 4)
    inboxes = [torch.zeros(skipped + bulk.bulk_words(ranks), dtype=torch.int64) for _ in terms]

    def fill(inbox: Tensor, sender: int, ahead: int = 0) -> None:
        signals, pieces = inbox[skipped:].split([programs * ranks, programs * ranks * bulk.PLACE])
        of_sender = pieces.view(torch.int32).view(programs, 2, ranks, -1)[:, :, sender]
        for at, words in enumerate(terms[sender].view(-1).view(torch.int32).split(piece)):
            turn = turns + 1 + at // programs
            signals.view(programs, ranks)[at % programs, sender] = turn + ahead
            of_sender[at % programs, turn & 1, : len(words)] = words

    for sender in range(ranks):
        if sender != rank:
            fill(inboxes[rank], sender, ahead)
    addresses = torch.tensor([each.data_ptr() for each in inboxes])
    counts = torch.full((2 * programs,), turns, dtype=torch.int32)
    control = torch.zeros(5, dtype=torch.int64)
    with torch.inference_mode():
        inbox = exchange.Inbox(rank, ranks, inboxes[rank], addresses, counts, control)
        found = bulk.sum_bulk(terms[rank], inbox)
    expected = torch.zeros_like(inboxes[0])
    fill(expected, rank)
    sent = all(torch.equal(each, expected) for other, each in enumerate(inboxes) if other != rank)
    return found, sent, int(control[4])
