"""How often the tokens of a message are counted, and what is shown meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from minichat.ui import composing
from tests.app.conftest import run, snapshot
from tests.app.prompt.test_composing import below, narrow


@run
async def test_a_long_message_says_that_it_is_counted_and_counts_once(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composing, "_LARGE", 30)
    backend, going, counts = narrow(), asyncio.Event(), list[int]()
    count = backend.count

    async def counting(prompt: Any) -> int:
        counts.append(1)
        await going.wait()
        return await count(prompt)

    monkeypatch.setattr(backend, "count", counting)
    async with bench(backend=backend) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put("x" * 40)
        await it.until(lambda: below(it).startswith("counting its tokens  Enter send"))
        going.set()
        await it.until(lambda: below(it).startswith("41 of 63 tokens"))
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert len(counts) == 1


@run
async def test_a_long_message_is_not_counted_between_two_keys(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting takes longer than a key, and the next count would begin beside it."""
    monkeypatch.setattr(composing, "_LARGE", 30)
    monkeypatch.setattr(composing, "_PAUSE", 0.5)
    backend, counts = narrow(), list[int]()
    count = backend.count

    async def counting(prompt: Any) -> int:
        counts.append(1)
        return await count(prompt)

    monkeypatch.setattr(backend, "count", counting)
    async with bench(backend=backend) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put("x" * 40)
        for _ in range(10):
            await asyncio.sleep(0.1)
            await it.pilot.press("x")
        assert not counts
        await it.until(lambda: below(it).startswith("51 of 63 tokens"))
        assert len(counts) == 1


@run
async def test_the_limit_follows_an_engine_that_is_restarted_with_fewer_blocks(
    bench: Callable[..., Any],
) -> None:
    async with bench(backend=narrow()) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.main.prompt.put("hello")
        await it.until(lambda: below(it).startswith("6 of 63 tokens"))
        it.main.show_snapshot(snapshot(max_context=32))
        await it.until(lambda: below(it).startswith("6 of 31 tokens"))
