"""The engine on its thread, called from other threads, on the ledger whose steps take no time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import FrozenInstanceError
from itertools import islice
from typing import cast

import numpy as np
import pytest

from engine.api.commands import Abort, Preempt, Update, Warm
from engine.api.errors import BadInput, BadParams, QueueFull, RequestTooLong, UnknownRequest
from engine.api.events import Event
from engine.api.request import Finish
from engine.api.snapshot import Snapshot
from engine.grammar.grammars import Grammars
from engine.host.thread import EngineThread
from engine.serving.engine import Engine
from tests.engine.byte_tier import ByteTier
from tests.engine.ledger import VOCAB, alone, ledger_engine
from tests.host.conftest import Open
from tests.host.roomy import DEPTHS, endless, params, roomy_engine
from tests.waiting import LIMIT, becomes


class TestReplies:
    @DEPTHS
    def test_two_hundred_requests_from_eight_threads(self, opened: Open, depth: int) -> None:
        host = opened(ledger_engine(blocks=24, host=8, depth=depth, step_tokens=32))

        def some(thread: int) -> None:
            for n in range(25):
                prompt = [thread, n, *range(n)]
                stream = host.submit(prompt, params(1 + n))
                if n % 5 == 4:
                    host.send(Abort((stream.id,))).result()
                    result = stream.result()
                    assert result.finish in (Finish.ABORTED, Finish.LENGTH)
                    assert list(result.tokens) == alone(prompt, 1 + n)[: len(result.tokens)]
                else:
                    if n % 7 == 3:
                        with suppress(UnknownRequest):  # it has ended already
                            host.send(Preempt(stream.id)).result()
                    assert list(stream.result().tokens) == alone(prompt, 1 + n)

        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(some, n) for n in range(8)]:
                each.result(LIMIT)
        assert host.snapshot().blocks.in_use == 0
        assert host.snapshot().finished == 200

    def test_a_stream_gives_each_delta(self, opened: Open) -> None:
        deltas = list(opened(ledger_engine()).submit([1, 2], params(5)))
        assert [token for delta in deltas for token in delta.tokens] == alone([1, 2], 5)
        assert [delta.finish for delta in deltas] == [None] * 4 + [Finish.LENGTH]

    def test_result_returns_only_unread_deltas(self, opened: Open) -> None:
        stream = opened(ledger_engine()).submit([1, 2], params(5))
        first = next(iter(stream))
        rest = stream.result()
        assert (*first.tokens, *rest.tokens) == tuple(alone([1, 2], 5))
        assert list(stream) == []
        assert (stream.result().tokens, stream.result().finish) == ((), Finish.LENGTH)

    def test_many_streams_in_one_event_loop(self, opened: Open) -> None:
        host = opened(ledger_engine(blocks=24))

        async def read(n: int) -> list[int]:
            return [token async for delta in host.submit([n], params(30)) for token in delta.tokens]

        async def all_of_them() -> list[list[int]]:
            return await asyncio.wait_for(asyncio.gather(*map(read, range(20))), LIMIT)

        assert asyncio.run(all_of_them()) == [alone([n], 30) for n in range(20)]

    def test_an_async_reader_may_pause_and_continue(self, opened: Open) -> None:
        host = opened(roomy_engine())

        async def read_in_parts() -> list[int]:
            stream = host.submit([1], params(1500))
            tokens: list[int] = []
            for _ in range(10):
                async for delta in stream:
                    tokens += delta.tokens
                    if len(tokens) % 100 == 0:
                        break
            async for delta in stream:
                tokens += delta.tokens
            return tokens

        assert len(asyncio.run(asyncio.wait_for(read_in_parts(), LIMIT))) == 1500

    def test_a_reader_with_a_closed_loop_affects_no_other(self, opened: Open) -> None:
        host = opened(roomy_engine())
        stream = host.submit([1], params(50_000))
        loop = asyncio.new_event_loop()
        reading = aiter(stream)
        loop.run_until_complete(anext(reading))
        loop.close()
        assert host.submit([2], params(50)).result().finish is Finish.LENGTH
        assert host.snapshot().state == "ready"
        host.send(Abort((stream.id,))).result()


class TestCommands:
    def test_an_error_of_a_request_is_raised_to_its_caller(self, opened: Open) -> None:
        host = opened(ledger_engine(context=64))
        with pytest.raises(BadInput, match="prompt is empty"):
            host.submit([], params()).result()
        with pytest.raises(
            RequestTooLong, match=r"64 tokens; .* takes 63\. Shorten the prompt or choose a larger"
        ):
            host.submit([1] * 64, params()).result()
        with pytest.raises(
            RequestTooLong, match=r"60 tokens and 20 more.* takes 64 in all.*lower max_tokens to 4"
        ):
            host.submit([1] * 60, params()).result()
        for bad in (VOCAB, -1):
            with pytest.raises(BadInput, match=rf"token id {bad} is out of range: .* 0 to {VOCAB - 1}"):
                host.submit([1, bad], params()).result()
        with pytest.raises(BadInput, match=f"token id {VOCAB} is out of range"):
            host.submit([1], params(logit_bias={VOCAB: 1.0})).result()
        with pytest.raises(BadInput, match=r"must hold only integers, got 1\.5"):
            host.submit([1, 1.5], params()).result()  # type: ignore[list-item]
        for bad_prompt in (7, b"text"):
            with pytest.raises(BadInput, match=f"got {type(bad_prompt).__name__}"):
                host.submit(bad_prompt, params()).result()  # type: ignore[arg-type]
        assert host.snapshot().running == host.snapshot().waiting == 0

    def test_an_unknown_request_is_named(self, opened: Open) -> None:
        host = opened(ledger_engine())
        for asked in (host.send(Preempt(17)), host.fork(17), host.send(Update(17, {"top_k": 1}))):
            with pytest.raises(UnknownRequest, match="no request 17 is alive"):
                asked.result()
        host.send(Abort((17,))).result()  # no error, as the request has ended

    def test_a_bad_change_changes_nothing(self, opened: Open) -> None:
        host = opened(roomy_engine())
        stream = endless(host)
        for bad in ({"temperature": -1}, {"warmth": 1}, {"max_tokens": 0}, {"top_p": 10**400}):
            with pytest.raises(BadParams, match=next(iter(bad))):
                host.send(Update(stream.id, bad)).result()
        with pytest.raises(RequestTooLong, match="lower max_tokens to 59997"):
            host.send(Update(stream.id, {"max_tokens": 60_000})).result()
        host.send(Abort((stream.id,))).result()
        result = stream.result()
        assert list(result.tokens) == alone([0, 1, 2], 1 + len(result.tokens))[1:]

    @DEPTHS
    def test_an_abort_ends_the_stream_and_frees_the_blocks(self, opened: Open, depth: int) -> None:
        engine = roomy_engine(depth)
        host = opened(engine)
        stream = endless(host)
        host.send(Abort((stream.id,))).result()
        shot = host.snapshot()  # taken before another step
        assert (shot.running, shot.blocks.in_use) == (0, 0)
        assert stream.result().finish is Finish.ABORTED
        host.send(Abort((stream.id,))).result()

    @DEPTHS
    def test_all_commands_from_many_threads_at_once(self, opened: Open, depth: int) -> None:
        engine = roomy_engine(depth, host=64)
        host = opened(engine)

        def work(n: int) -> None:
            stream = host.submit([n], params(50_000))
            host.send(Preempt(stream.id)).result()
            host.send(Update(stream.id, {"top_k": n + 1})).result()
            branch = host.fork(stream.id)
            start, first = branch.prompt_tokens - 1, next(iter(branch)).tokens
            assert host.snapshot().state == "ready"
            host.send(Abort((stream.id, branch.id))).result()
            reply, rest = list(stream.result().tokens), [*first, *branch.result().tokens]
            whole = alone([n], max(len(reply), start + len(rest)))
            assert reply == whole[: len(reply)]
            assert rest == whole[start : start + len(rest)]

        with ThreadPoolExecutor(6) as pool:
            for each in [pool.submit(work, n) for n in range(12)]:
                each.result(LIMIT)
        engine.scheduler.check()

    def test_a_full_queue_is_reported(self, opened: Open) -> None:
        engine = roomy_engine(slots=1)
        engine.limits = type(engine.limits)(60_000, VOCAB, waiting=2)
        host = opened(engine)
        running = endless(host)
        waiting = [host.submit([n], params(2)) for n in range(2)]
        with pytest.raises(QueueFull, match="2 requests are waiting"):
            host.submit([9], params(2)).result()
        host.send(Abort((running.id,))).result()
        assert [stream.result().finish for stream in waiting] == [Finish.LENGTH] * 2


class TestSnapshots:
    def test_it_is_immutable_and_adds_up(self, opened: Open) -> None:
        host = opened(roomy_engine(depth=1))
        streams = [endless(host, n) for n in range(3)]
        next(iter(host.fork(streams[0].id)))
        for _ in range(20):
            self._adds_up(host.snapshot())
        shot = host.snapshot()
        assert (shot.running, shot.waiting, shot.state) == (4, 0, "ready")
        with pytest.raises(FrozenInstanceError):
            shot.running = 0  # type: ignore[misc]
        for column in (shot.blocks.refs, shot.blocks.owner, shot.blocks.filled, shot.blocks.used_at):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 7
        before = (shot.step, shot.blocks.refs.copy(), shot.requests)
        next(islice(iter(streams[0]), 50, None))
        assert host.snapshot().step > shot.step
        assert (shot.step, shot.requests) == (before[0], before[2])
        assert np.array_equal(shot.blocks.refs, before[1])

    @staticmethod
    def _adds_up(shot: Snapshot) -> None:
        blocks = shot.blocks
        held = [block for request in shot.requests for block in request.blocks]
        assert blocks.in_use == len(set(held)) == int((blocks.refs > 0).sum())
        assert np.array_equal(np.bincount(held, minlength=blocks.size), blocks.refs)
        free = int((blocks.owner < 0).sum())
        assert free + blocks.cached + blocks.in_use == blocks.size
        for request in shot.requests:
            written = sum(blocks.filled[list(request.blocks)])
            shared = bool(request.blocks) and blocks.refs[request.blocks[-1]] > 1  # until a fork's first step
            assert written - request.launched in ((0, 1) if shared else (0,))
            assert request.launched in (request.prompt + request.generated + lag for lag in (-1, 0))

    @pytest.mark.parametrize("length", [11, 16])
    def test_a_block_that_a_fork_shares_is_as_full_as_the_longer_one_has_it(self, length: int) -> None:
        engine = ledger_engine(depth=1)
        parent = engine.submit([1, 2, 3], params(100), lambda delta: None)
        while engine.scheduler.requests[parent].launched < length:
            engine.step()
        child = engine.fork(parent, lambda delta: None)
        requests, shot = engine.scheduler.requests, engine.snapshot()
        assert (requests[parent].launched, requests[child].launched) == (length, length - 1)
        assert sum(shot.blocks.filled[requests[parent].blocks]) == length

    def test_of_a_hundred_thousand_blocks(self, opened: Open) -> None:
        host = opened(ledger_engine(blocks=100_000, slots=2, context=512))
        host.submit([1] * 100, params(50)).result()
        shot = host.snapshot()
        assert (shot.blocks.size, shot.blocks.in_use, shot.blocks.cached) == (100_000, 0, 9)
        assert shot.blocks.owner.shape == (100_000,)

    def test_a_snapshot_gives_the_reason_for_waiting_and_the_totals(self, opened: Open) -> None:
        host = opened(roomy_engine(slots=1))
        running = endless(host)
        waiting = host.submit([1], params(1))
        first, second = host.snapshot().requests
        assert (first.id, first.phase) == (running.id, "decode")
        assert (second.id, second.phase, second.why) == (waiting.id, "waiting", "queued")
        host.send(Abort((running.id,))).result()
        waiting.result()
        shot = host.snapshot()
        assert (shot.finished, shot.ttft.count) == (2, 2)


def test_a_tier_that_stores_nothing_is_reported_even_if_no_step_runs(opened: Open) -> None:
    tier = ByteTier()
    host = opened(ledger_engine(below=[tier]))
    events: list[Event] = []
    host.subscribe(events.append)
    for tier.problem, reports in (("No space left on device", 1), ("No space left on device", 1), ("", 2)):
        host.snapshot()  # reports come after a command
        host.snapshot()
        assert becomes(lambda reports=reports: len(events) == reports)
    assert [(each.kind, each.record()["tier"], each.record()["problem"]) for each in events] == [
        ("tierproblem", "bytes", "No space left on device"),
        ("tierproblem", "bytes", ""),
    ]


def test_an_idle_engine_finishes_its_warm_up_after_it_is_ready() -> None:
    engine = ledger_engine(slots=8)
    engine.runner.graph_sizes = (1, 2, 4, 8)
    whole = 4 * 4 + 2 * 7 + 8  # with prompts; 7 that wait, and a full step
    grammars = Noting(engine)
    engine.grammars = cast(Grammars, grammars)
    host = EngineThread(engine, warm=True)
    try:
        host.send(Warm()).result()
        assert becomes(lambda: len(engine.runner.captured) == whole)
        assert host.snapshot().warmed == 1
        assert list(host.submit([1, 2], params(3)).result().tokens) == alone([1, 2], 3)
        assert grammars.captured == [whole], "a vocabulary that is read beside the warm-up holds the GIL"
        host.send(Warm()).result()
        assert becomes(lambda: grammars.captured == [whole, whole]), "nothing is left to wait for"
    finally:
        host.close()


class Noting:
    """Notes how many graphs there are when the vocabulary is read."""

    def __init__(self, engine: Engine) -> None:
        self._runner, self.captured = engine.runner, list[int]()

    def warm(self) -> None:
        self.captured.append(len(self._runner.captured))
