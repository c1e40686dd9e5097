"""An hour of random use in a few seconds: no key sequence crashes the screen or loses data."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.api.events import Admitted, Evicted, FirstToken, Quantized, Quantizing
from engine.api.snapshot import Change, SchemeView, Switch
from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend, FakeReply
from minichat.features import BUILT_IN
from minichat.features.table import commands
from minichat.ui.monitor.bindings import KEYS as MONITOR
from minichat.ui.transcript.bindings import KEYS as TRANSCRIPT
from tests.app.conftest import run, snapshot

SIZES = ((40, 12), (80, 24), (120, 40), (200, 60), (300, 90))
LEAVING = {"ctrl+q", "ctrl+c", "f5"}
TYPED = (*"aB 1/@.-+`|", "enter", "escape", "tab", "shift+tab", "backspace", "delete", "space")
MOVED = ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "shift+up", "shift+right")
BOUND = [key for each in commands(BUILT_IN) for key in each.keys.split(",") if key]
BOUND += [key for each in (*MONITOR, *TRANSCRIPT) for key in each.key.split(",")]  # type: ignore[union-attr]
TEXTS = ("a word ", "漢字 ", "**b** ", "\n\n- item\n", "```py\nx = 1\n", "<think>hm</think>", "\x1b[2J")
TEXTS += ("x" * 300,)
SCHEMES = (SchemeView("none", "", 4_000_000, 64), SchemeView("int8", "", 2_000_000, 80))


def shots() -> list[Any]:
    """Snapshots of an engine that runs requests, changes its scheme and is idle."""
    switches = (Switch("prefix_cache", True, True), Switch("overlap", False, True))
    return [
        snapshot(
            step,
            tuple(range(step % 4)),
            schemes=SCHEMES,
            switches=switches,
            change=Change("int8", step % 8, 8) if step % 5 == 0 else None,
        )
        for step in range(40)
    ]


def stream(reply: FakeReply, draw: random.Random) -> None:
    if not reply.finished:
        reply.say(draw.choice(TEXTS), tokens=draw.randint(1, 3))
        if draw.random() < 0.3:
            reply.end()


@run
@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 12), *(pytest.param(seed, 60, marks=pytest.mark.soak) for seed in range(20))]
)
async def test_random_keys(bench: Callable[..., Any], seed: int, steps: int) -> None:
    draw, keys = random.Random(seed), [*BOUND, *TYPED, *TYPED, *MOVED]
    keys = [key for key in keys if key not in LEAVING]
    async with bench(draw.choice(SIZES), frames=True, backend=FakeBackend(shots())) as it:
        for _ in range(steps):
            await it.pilot.press(draw.choice(keys))
            if draw.random() < 0.1:
                await it.pilot.resize_terminal(*draw.choice(SIZES))
            for reply in it.replies[-3:]:
                stream(reply, draw)
            if it.replies and draw.random() < 0.2:
                last = it.replies[-1].id
                it.backend.emit(
                    Admitted(1, 1.0, last, 0),
                    FirstToken(1, 1.0, last, 0.1),
                    Evicted(1, 1.0, last, 3),
                    Quantizing(1, 1.0, "int8", 1, 8),
                    Quantized(1, 1.0, "int8", "none", 64, 1.0, ""),
                )
            assert it.app.is_running
            assert len(it.main.query("*")) < 110
            assert it.app.chats.active in it.main.shown
        while len(it.app.screen_stack) > 1:
            await it.pilot.press("escape")
        for reply in it.replies:
            reply.end()
        await it.until(lambda: not it.app.chats.streaming)
        store = Store(it.app.paths.chats)
        kept = {chat.id: chat.messages for chat in store.open_chats(10_000)}
        store.close()
        assert kept.keys() == {each.chat.id for each in it.app.chats}
        for each in it.app.chats:
            shown = each.chat.messages
            assert kept[each.chat.id][len(kept[each.chat.id]) - len(shown) :] == shown
