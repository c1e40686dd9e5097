"""The deltas of many replies as columns of one frame, because most of them are only tokens and text."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from engine.api import wire
from engine.api.events import Delta, TokenLogprob

Numbered = tuple[int, Delta]  # with the number of the command that started the reply

_WHOLE, _REAL = np.dtype("<i4"), np.dtype("<f8")


def packed(deltas: Iterable[Numbered]) -> list[list[Any]]:
    """Return columns: numbers, requests, tokens and texts of plain deltas; then numbers and other deltas;
    then numbers, requests and log-probabilities of prompts.
    """
    numbers, requests, tokens, texts = list[int](), list[int](), list[Any](), list[str]()
    others, scored = list[Any](), list[Any]()
    for number, delta in deltas:
        if delta == Delta(delta.request, delta.tokens, delta.text):
            numbers.append(number)
            requests.append(delta.request)
            tokens.append(delta.tokens)
            texts.append(delta.text)
        elif delta == Delta(delta.request, prompt_logprobs=delta.prompt_logprobs):
            scored.append((number, delta.request, _pack_logprobs(delta.prompt_logprobs)))
        else:
            others.append((number, wire.encode_delta(delta)))
    return [numbers, requests, tokens, texts, others, scored]


def unpacked(columns: Any) -> Iterator[Numbered]:
    """Return the deltas of a frame. Those of a prompt are the first of a reply, and the last is never plain,
    so it stays last.
    """
    numbers, requests, tokens, texts, others, scored = columns
    for number, request, logprobs in scored:
        yield number, Delta(request, prompt_logprobs=_unpack_logprobs(logprobs))
    for number, request, each, text in zip(numbers, requests, tokens, texts, strict=True):
        yield number, Delta(request, tuple(each), text)
    for number, written in others:
        yield number, wire.decode_delta(written)


def _pack_logprobs(entries: Sequence[TokenLogprob]) -> list[str]:
    """The numbers of all entries as arrays: as JSON, those of a long prompt would take milliseconds."""
    tokens, logprobs, ranks, tops = zip(*entries, strict=True)
    likeliest = [*chain.from_iterable(tops)]
    ids, values = zip(*likeliest, strict=True) if likeliest else ((), ())
    whole = (tokens, ranks, [*map(len, tops)], ids)
    return [
        *(_written(each, _WHOLE) for each in whole),
        *(_written(each, _REAL) for each in (logprobs, values)),
    ]


def _unpack_logprobs(columns: Sequence[str]) -> tuple[TokenLogprob, ...]:
    tokens, ranks, counts, ids = (_read(each, _WHOLE) for each in columns[:4])
    logprobs, values = (_read(each, _REAL) for each in columns[4:])
    likeliest = zip(ids, values, strict=True)
    tops = [tuple(islice(likeliest, count)) for count in counts]
    return tuple(map(TokenLogprob, tokens, logprobs, ranks, tops))


def _written(numbers: Sequence[float], kind: "np.dtype[Any]") -> str:
    return b64encode(np.array(numbers, kind).tobytes()).decode()


def _read(text: str, kind: "np.dtype[Any]") -> list[Any]:
    return np.frombuffer(b64decode(text), kind).tolist()
