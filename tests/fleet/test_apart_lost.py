"""Prompts and replies on different engines: one of them ends or is killed."""

import itertools
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.commands import Submit
from engine.api.config import EngineConfig
from engine.api.events import BlocksSent, Event, Finished, Handler, PromptSent, RequestEvent, Restarting
from engine.api.places import ExchangePlace
from engine.distributed.memory import anonymous
from engine.fleet.apart import ApartFleet
from engine.fleet.fleet import NUMBERS
from engine.fleet.local import start_apart_fleet
from engine.host.process import EngineProcess
from engine.host.stream import ReplyFailed
from engine.host.thread import EngineThread
from engine.serving.engine import Engine
from engine.start import start
from tests.fleet.test_apart import GREEDY, Apart, _never_brief, alone, config, prompt, shared_memory
from tests.waiting import LIMIT, becomes

__all__ = ["_never_brief", "alone"]


class Ending(EngineThread):
    """An engine that ends before it can report that a prompt's blocks were sent."""

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        def passed(event: Event) -> None:
            sent = isinstance(event, BlocksSent)
            handler(Restarting(event.step, event.at, "it was killed", 60.0) if sent else event)

        return super().subscribe(passed)


class Early(EngineThread):
    """An engine whose caller gets the processor again once a prompt's blocks were sent, or wait for it."""

    fleet: ApartFleet
    ends = 0  # of the prompt

    def __init__(self, engine: Engine) -> None:
        self.over = threading.Event()
        super().__init__(engine)

    def send(self, command: Any, *more: Any) -> Future[Any]:
        answer = super().send(command, *more)
        if isinstance(command, Submit):
            assert self.over.wait(LIMIT)
        return answer

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        def passed(event: Event) -> None:
            if isinstance(event, RequestEvent):
                if self.fleet._events.acquire(blocking=False):
                    self.fleet._events.release()
                else:
                    self.over.set()  # the caller is in a block that the event has to wait for
            handler(event)
            self.ends += isinstance(event, Finished | BlocksSent)
            if self.ends == 2:
                self.over.set()

        return super().subscribe(passed)


def threads(of_prompts: type[EngineThread]) -> Apart:
    """Both engines in this process."""
    memory = anonymous(2**27)
    places = [str(ExchangePlace(f"/proc/self/fd/{memory}", 1, own)) for own in (0, None)]
    first, second = (
        start(replace(config(), exchange=place, first_request=number * NUMBERS))
        for number, place in enumerate(places)
    )
    return Apart(ApartFleet({0: of_prompts(first)}, {1: EngineThread(second)}, lambda: os.close(memory)))


def test_a_prompt_that_is_computed_before_its_engine_is_known_to_accept_it(alone: EngineThread) -> None:
    made = threads(Early)
    try:
        Early.fleet = made.fleet
        stream = made.fleet.submit(prompt(660, 100), GREEDY)
        assert becomes(lambda: made.of(PromptSent, stream.id)), "the request waits for ever"
        assert made.sent(stream.id).sent == 6
        assert stream.result().tokens == alone.submit(prompt(660, 100), GREEDY).result().tokens
        assert {each.request for each in made.events if isinstance(each, RequestEvent)} == {stream.id}
    finally:
        made.fleet.close()


def test_an_engine_that_ends_between_a_prompt_and_its_blocks_costs_no_reply(alone: EngineThread) -> None:
    made = threads(Ending)
    try:
        stream = made.fleet.submit(prompt(650, 100), GREEDY)
        assert becomes(lambda: made.of(PromptSent, stream.id)), "it waits for blocks that no engine sends"
        assert made.sent(stream.id).error == "it was killed"
        assert stream.result().tokens == alone.submit(prompt(650, 100), GREEDY).result().tokens
        assert not made.fleet._remote
    finally:
        made.fleet.close()


def test_a_killed_engine_for_prompts_costs_no_reply(tmp_path: Path, alone: EngineThread) -> None:
    before, may_start, pids = shared_memory(), threading.Event(), dict[int, int]()
    found = list[bytes]()  # the beginning of the sender's part of the memory, at each of its starts

    def begin(config: EngineConfig, log: Path) -> EngineProcess:
        assert not config.first_request % NUMBERS or may_start.wait(LIMIT)
        place = ExchangePlace.parse(config.exchange or "")
        if place.own is not None:
            with Path(place.path).open("rb") as memory:
                found.append(memory.read(8))
        made = EngineProcess(config, log)
        pids[config.first_request // NUMBERS] = made.pid
        return made

    made = Apart(start_apart_fleet([config()] * 2, 1, begin, tmp_path / "engine.log", 1, pauses=(0.0,)))
    assert len(shared_memory() - before) == 1
    try:
        texts = [prompt(600 + at, 300) for at in range(2)]
        os.kill(pids[0], signal.SIGSTOP)
        streams = [made.fleet.submit(each, GREEDY) for each in texts]
        assert {each.id // NUMBERS for each in streams} == {1}
        os.kill(pids[0], signal.SIGKILL)
        for stream, text in zip(streams, texts, strict=True):
            assert stream.result().tokens == alone.submit(text, GREEDY).result().tokens
        assert "killed by SIGKILL" in made.sent(streams[1].id).error
        later = made.fleet.submit(prompt(610, 100), GREEDY)
        assert later.result().tokens == alone.submit(prompt(610, 100), GREEDY).result().tokens
        assert not made.of(PromptSent, later.id), "there was none to compute it"
        may_start.set()
        assert becomes(lambda: [each.state for each in made.fleet.snapshot().replicas] == ["ready"] * 2)
        fresh = itertools.count(611)

        def sent() -> bool:
            text = prompt(next(fresh), 100)
            stream = made.fleet.submit(text, GREEDY)
            assert stream.result().tokens == alone.submit(text, GREEDY).result().tokens
            return bool(made.of(PromptSent, stream.id)) and made.sent(stream.id).sent == 6

        assert becomes(sent), "it gets prompts again"

        os.kill(pids[0], signal.SIGSTOP)
        lost = made.fleet.submit(prompt(599, 1500), GREEDY)
        assert lost.id // NUMBERS == 1
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ReplyFailed, match="killed by SIGKILL"):
            lost.result()
        os.kill(pids[0], signal.SIGCONT)
        assert becomes(lambda: made.in_use()[0] == 0), "its prefill goes on"
    finally:
        may_start.set()
        made.fleet.close()
    assert shared_memory() <= before
    assert found == [bytes(8)] * 2, "what the killed one had sent is not found"
