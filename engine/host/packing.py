"""The deltas of many replies as columns of one frame, because most of them are only tokens and text."""

from collections.abc import Iterable, Iterator
from typing import Any

from engine.api import wire
from engine.api.events import Delta

Numbered = tuple[int, Delta]  # with the number of the command that started the reply


def packed(deltas: Iterable[Numbered]) -> list[list[Any]]:
    """Return columns: numbers, requests, tokens and texts of plain deltas; then numbers and other deltas."""
    numbers, requests, tokens, texts = list[int](), list[int](), list[Any](), list[str]()
    others: list[Any] = []
    for number, delta in deltas:
        if delta == Delta(delta.request, delta.tokens, delta.text):
            numbers.append(number)
            requests.append(delta.request)
            tokens.append(delta.tokens)
            texts.append(delta.text)
        else:
            others.append((number, wire.encode_delta(delta)))
    return [numbers, requests, tokens, texts, others]


def unpacked(columns: Any) -> Iterator[Numbered]:
    """Return the deltas of a frame. The last one of a reply is never plain, so it stays last."""
    numbers, requests, tokens, texts, others = columns
    for number, request, each, text in zip(numbers, requests, tokens, texts, strict=True):
        yield number, Delta(request, tuple(each), text)
    for number, written in others:
        yield number, wire.decode_delta(written)
