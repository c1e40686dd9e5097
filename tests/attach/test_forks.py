"""Forked replies that a screen left running: the next screen resumes them with their text from the start."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.params import SamplingParams
from minichat.clients.address import Address
from minichat.clients.remote import RemoteBackend
from minichat.session.resuming import unfinished
from tests.app.conftest import Bench, bench, run
from tests.attach.conftest import served, slow
from tests.cases import soak
from tests.server.conftest import KEY, Served
from tests.waiting import becomes

__all__ = ["bench", "served", "slow"]

LENGTH = 1000  # tokens; the first screen leaves long before
PARAMS = SamplingParams(max_tokens=LENGTH, ignore_eos=True)


def backend(served: Served) -> RemoteBackend:
    return RemoteBackend(Address(served.url, key=KEY))


async def fork(it: Bench) -> None:
    await it.pilot.press("alt+k")


async def pick_token(it: Bench) -> None:
    """Stop the reply and continue it with another token in its middle."""
    await it.pilot.press("escape")
    await it.until(lambda: not it.app.chats.active.streaming)
    await it.pilot.press("alt+c")
    await it.until(lambda: it.picker.rows)
    for _ in range(4):
        await it.pilot.press("right")
    picker = it.picker
    await it.until(lambda: picker.rows and picker.at == 4)
    await it.pilot.press("down", "enter")


@pytest.mark.parametrize("how", [fork, *soak(pick_token)])
def test_the_next_screen_resumes_a_fork(
    bench: Callable[..., Any], slow: Served, how: Callable[[Bench], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @run
    async def test() -> None:
        async with bench((110, 36), backend=backend(slow), params=PARAMS) as it:
            await it.until(lambda: it.app.lifecycle.ready.is_set())
            it.app.chats.active.send("tell me")
            await it.until(lambda: it.app.chats.active.run and len(it.app.chats.active.run.parts.text) > 20)
            await how(it)
            await it.until(lambda: len(it.app.chats) == 2 and it.app.chats.active.run)
            child = it.app.chats.active
            await it.until(lambda: child.run and child.run.reply and len(child.run.pieces) > 2)
            start, before = child.run.parts.text, child.run.pieces[0]
            assert before[0] >= 4 and start.startswith(before[1])
            prompt_tokens = child.run.trace.prompt_tokens
            await it.app.action_quit()
        monkeypatch.setattr(slow.runner, "_seconds", 0.0)  # the reply ends soon
        async with bench((110, 36), backend=backend(slow), params=PARAMS) as it:
            await it.until(lambda: it.app.lifecycle.ready.is_set())
            child = list(it.app.chats)[-1]
            await it.until(lambda: not child.streaming and not unfinished(child.chat.messages[-1]))
            message = child.chat.messages[-1]
            assert message.state == "stopped"
            assert message.error.startswith("max tokens")
            assert message.text.startswith(start)
            assert (message.stats.tokens, message.stats.copied) == (LENGTH, before[0])
            [trace] = child.traces.values()
            assert (trace.prompt_tokens, len(trace.tokens)) == (prompt_tokens, LENGTH)
            await it.backend.detach()
        assert becomes(lambda: slow.state.gate.in_flight == 0)

    test()
