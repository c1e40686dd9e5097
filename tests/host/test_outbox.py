"""What the engine's process sends: at once for a waiting reader, merged for a slow one."""

import gc
import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadWire
from engine.api.events import Delta, Queued, TokenLogprob
from engine.api.request import Finish
from engine.host.frames import FrameSocket
from engine.host.outbox import Outbox, merged
from engine.host.packing import packed, unpacked
from tests.waiting import LIMIT


class Pair:
    """An outbox, and the other end of its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.lost = threading.Event()
        self.frames, self.reader = FrameSocket(ours), FrameSocket(theirs)
        self.outbox = Outbox(self.frames, self.lost.set)
        self.coming = iter(self.reader)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the sending thread in a call until the end."""
        holds, goes = threading.Event(), threading.Event()

        def answer() -> dict[str, Any]:
            holds.set()
            assert goes.wait(LIMIT)
            return {}

        self.outbox.answer(answer)
        assert holds.wait(LIMIT)
        try:
            yield
        finally:
            goes.set()
        assert next(self.coming) == {"answers": [{}]}

    def deltas(self) -> Iterator[Delta]:
        """Yield the deltas of one reply, until its end."""
        for frame in self.coming:
            for _, delta in unpacked(frame["deltas"]) if "deltas" in frame else ():
                yield delta
                if delta.finish:
                    return


def deltas_in_memory() -> int:
    return sum(type(each) is Delta for each in gc.get_objects())


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.reader.end()
    pair.outbox.close()
    pair.frames.close()
    pair.reader.close()


def delta(token: int, finish: Finish | None = None) -> Delta:
    return Delta(3, (token,), f"{token} ", (TokenLogprob(token, -1.0, 1, ()),), finish)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=30), st.sampled_from([None, *Finish]))
def test_merged_deltas_keep_everything(tokens: list[int], finish: Finish | None) -> None:
    deltas = [delta(token) for token in tokens[:-1]] + [delta(tokens[-1], finish)]
    assert merged(deltas) == [
        Delta(
            3,
            tuple(tokens),
            "".join(f"{token} " for token in tokens),
            tuple(TokenLogprob(token, -1.0, 1, ()) for token in tokens),
            finish,
        )
    ]


def test_replies_of_one_request_are_merged_separately() -> None:
    """The delta that ends the request stays last."""
    parts = [(1, "a", None), (0, "b", None), (1, "c", Finish.STOP), (0, "d", None), (0, "e", Finish.LENGTH)]
    deltas = [
        Delta(3, (7,), text, finish=finish, choice=choice, left=choice, tail=text)
        for choice, text, finish in parts
    ]
    assert merged(deltas) == [
        Delta(3, (7, 7), "ac", finish=Finish.STOP, choice=1, left=1, tail="c"),
        Delta(3, (7, 7, 7), "bde", finish=Finish.LENGTH, tail="e"),
    ]


def test_tokens_that_come_one_by_one_are_sent_one_by_one(pair: Pair) -> None:
    for n in range(9):
        pair.outbox.delta(7, delta(n))
        assert list(unpacked(next(pair.coming)["deltas"])) == [(7, delta(n))]


def test_tokens_that_come_at_once_are_sent_together(pair: Pair) -> None:
    with pair.held():
        for n in range(9):
            pair.outbox.delta(7, delta(n))
    [(_, received)] = unpacked(next(pair.coming)["deltas"])
    assert received.tokens == tuple(range(9))


def test_a_stalled_reader_blocks_nothing_and_loses_no_token(pair: Pair) -> None:
    total = 10_000
    before = deltas_in_memory()
    with pair.held():
        for n in range(total):
            pair.outbox.delta(7, delta(n))
        assert deltas_in_memory() - before < 64
    for n in range(total, 2 * total):  # more than the socket holds: a blocking send would hang here
        pair.outbox.delta(7, delta(n))
    pair.outbox.delta(7, Delta(3, finish=Finish.LENGTH))
    received = list(pair.deltas())
    assert [token for each in received for token in each.tokens] == list(range(2 * total))
    assert "".join(each.text for each in received) == "".join(f"{n} " for n in range(2 * total))
    assert len(received) < 200


def test_the_newest_of_many_events_are_kept(pair: Pair) -> None:
    first = Queued(0, 0.0, 0, 10**6)
    for n in range(60_000):
        pair.outbox.event(Queued(n, 0.0, n, 1) if n else first)
    steps: list[int] = []
    while not steps or steps[-1] != 59_999:
        steps += [event["step"] for event in next(pair.coming).get("events", ())]
    assert len(steps) < 60_000
    assert steps == sorted(steps)


def test_answers_and_the_newest_progress(pair: Pair) -> None:
    pair.outbox.answer(lambda: {"to": 1, "is": None})
    assert next(pair.coming) == {"answers": [{"to": 1, "is": None}]}
    pair.outbox.note("progress", (3, 9))
    assert next(pair.coming) == {"progress": [3, 9]}
    pair.outbox.note("folder", "/models/one")
    assert next(pair.coming) == {"folder": "/models/one"}


def test_a_closed_reader_is_detected(pair: Pair) -> None:
    pair.reader.end()
    for n in count():
        pair.outbox.delta(7, delta(n))
        if pair.lost.wait(0.001):
            break


def test_a_message_that_cannot_be_encoded_ends_the_connection(pair: Pair) -> None:
    pair.outbox.answer(lambda: {"to": 1, "is": float("nan")})
    assert pair.lost.wait(20)


@pytest.mark.parametrize("cut", [0, 2, 4, 9])
def test_a_truncated_frame_is_the_end(cut: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = (12).to_bytes(4, "little") + b'{"a": 12345}'
        ours.sendall(frame + frame[:cut])
        ours.shutdown(socket.SHUT_WR)
        reader = FrameSocket(theirs)
        assert list(reader) == [{"a": 12345}]
        reader.close()


def test_packed_deltas_keep_everything() -> None:
    """Plain deltas come first; those of one reply stay in order."""
    plain = [(0, Delta(1, (1, 2), "a\ud83d é")), (5, Delta(9, (), "x")), (0, Delta(1, (3,)))]
    other = [(2, delta(1)), (5, Delta(9, (4,), "y", finish=Finish.STOP, blocks=3)), (2, Delta(3, tail="z"))]
    mixed = [plain[0], other[0], plain[1], other[1], other[2], plain[2]]
    assert list(unpacked(json.loads(json.dumps(packed(mixed))))) == plain + other


def test_log_probabilities_of_a_prompt_are_sent_as_arrays() -> None:
    """Others wait for the frame, and for the pause after it. As JSON a prompt of 1,024 tokens took 5 ms."""
    entries = tuple(
        TokenLogprob(n, -n / 3, n % 7 + 1, tuple((n + k, -n / 3 + k) for k in range(n % 3)))
        for n in range(1000)
    )
    scored = Delta(4, prompt_logprobs=(*entries, TokenLogprob(7, -math.inf, 2**17, ())))
    sent = json.dumps(
        packed([(9, scored), (9, Delta(4, (1,), "x")), (8, Delta(5, prompt_logprobs=entries[:1]))])
    )
    assert sent.count(",") < 50
    assert [*unpacked(json.loads(sent))] == [
        (9, scored), (8, Delta(5, prompt_logprobs=entries[:1])), (9, Delta(4, (1,), "x"))
    ]  # fmt: skip


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall((2**31).to_bytes(4, "little"))
        with pytest.raises(BadWire, match="shorter than 2147483648 bytes, got 2147483648"):
            next(iter(FrameSocket(theirs)))
