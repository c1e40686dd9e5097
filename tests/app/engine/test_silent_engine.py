"""An engine that takes long to answer, as in a long step, or for good."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.api.errors import WeightsChanging
from engine.api.events import Quantized
from engine.api.snapshot import Change, SchemeView, Snapshot, Switch
from minichat.clients.fake import FakeBackend
from minichat.ui import sending, snapshot_poller
from tests.app.conftest import run, snapshot
from tests.attach.test_screen import back, lost
from tests.cases import SIZES

PLAIN = replace(
    snapshot(switches=(Switch("overlap", False, True),)),
    schemes=(SchemeView("none", "", 4_000_000_000), SchemeView("int4", "", 1_000_000_000)),
    kv_schemes=(SchemeView("none", "", 131_072, 900), SchemeView("int8", "", 66_560, 1772)),
)


class Silent(FakeBackend):
    """Answers while `speaks` is set."""

    def __init__(self) -> None:
        super().__init__([snapshot(running=(1, 2))])
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def snapshot(self) -> Snapshot:
        await self.speaks.wait()
        return await super().snapshot()


class Uncounted(FakeBackend):
    """Counts no tokens before `counts` is set."""

    def __init__(self) -> None:
        super().__init__([snapshot()])
        self.counts = asyncio.Event()

    async def count(self, prompt: Any) -> int:
        await self.counts.wait()
        return 7


@run
@pytest.mark.parametrize("size", SIZES)
async def test_figures_of_an_engine_that_does_not_answer_are_dated(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(snapshot_poller, "_PATIENCE", 0.01)
    backend = Silent()
    async with bench(size, backend=backend) as it:
        await it.until(lambda: "80 tok/s" in it.screen_text())
        backend.speaks.clear()
        it.app.poller.wake()
        await it.until(lambda: "no answer, as of " in it.screen_text())
        assert it.screen_text().splitlines()[-1].startswith(" no answer  ")
        await it.pilot.press("f8")
        await it.until(lambda: "Why this speed (no answer, as of " in it.screen_text())
        await it.pilot.press("escape")
        backend.speaks.set()
        await it.until(lambda: "no answer" not in it.screen_text())
        assert it.screen_text().splitlines()[-1].startswith(" ready  ")


@run
async def test_a_lost_link_says_so_itself(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_poller, "_PATIENCE", 0.01)
    backend = Silent()
    async with bench((120, 40), backend=backend) as it:
        await it.until(lambda: "80 tok/s" in it.screen_text())
        backend.emit(lost())
        it.main.show_late(True)
        it.main.show_late(False)
        await it.until(lambda: "no link, as of " in it.screen_text())
        assert "no answer" not in it.screen_text()
        backend.emit(back())
        await it.until(lambda: "no link" not in it.screen_text())


@run
async def test_a_conversion_that_the_engine_has_not_begun_is_shown(bench: Callable[..., Any]) -> None:
    """The engine compiles kernels first, and takes no snapshot meanwhile."""
    backend = FakeBackend([PLAIN])
    async with bench((100, 40), backend=backend) as it:
        await it.pilot.press("f4", "down", "enter")
        await it.until(lambda: "to int4: preparing" in it.screen_text())
        await it.until(lambda: "Enter convert  Esc cancel" in it.screen_text())
        it.quantization.see_snapshot(PLAIN)
        await it.until(lambda: "to int4: preparing" in it.screen_text())
        it.quantization.see_snapshot(replace(PLAIN, change=Change("int4", 1, 8)))
        await it.until(lambda: "to int4: 1 of 8 layers" in it.screen_text())
        it.quantization.see_snapshot(replace(PLAIN, quantization="int4"))
        await it.until(lambda: "to int4" not in it.screen_text())
        await it.until(lambda: "Enter convert  Esc close" in it.screen_text())


@run
async def test_a_conversion_that_does_not_begin_is_no_longer_shown(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([PLAIN])
    refused = asyncio.Event()

    async def refuse(_: object) -> None:
        await refused.wait()
        raise WeightsChanging("the weights are changing to int8; wait, or cancel that")

    async with bench((100, 40), backend=backend) as it:
        await it.pilot.press("f4", "down", "enter")
        await it.until(lambda: "to int4: preparing" in it.screen_text())
        backend.emit(Quantized(0, 0.0, "int4", "none", 64, 0.0, "it was canceled"))
        await it.until(lambda: "to int4" not in it.screen_text())
        backend.send = refuse
        await it.pilot.press("enter")
        await it.until(lambda: "to int4: preparing" in it.screen_text())
        refused.set()
        await it.until(lambda: "to int4" not in it.screen_text())
        await it.until(
            lambda: it.notices() == ["The weights are changing to int8; wait, or cancel that: Esc in F4"]
        )


@run
@pytest.mark.parametrize("linked", [True, False])
async def test_a_stop_that_waits_for_the_engine_says_so(bench: Callable[..., Any], linked: bool) -> None:
    said = ["No answer. The reply stops when the engine answers", "No link. The reply stops when it is back"]
    async with bench((100, 40)) as it:
        reply = await it.say("hello")
        await it.until(lambda: it.main.engine.latest)
        if linked:
            it.main.show_late(True)
        else:
            it.backend.emit(lost())
        await it.pilot.press("escape")
        await it.until(lambda: it.notices() == [said[not linked]])
        it.main.show_late(False)
        it.backend.emit(back())
        await it.answered(reply)


@run
async def test_what_is_chosen_without_a_link_waits_for_it(bench: Callable[..., Any]) -> None:
    queued = "No link. This is sent when it is back"
    async with bench((100, 40), backend=FakeBackend([PLAIN])) as it:
        await it.until(lambda: it.main.engine.latest)
        it.backend.emit(lost())
        await it.pilot.press("f4", "down", "enter")
        await it.until(lambda: it.notices() == [queued])
        await it.until(lambda: "to int4: no link" in it.screen_text())
        await it.pilot.press("alt+x")
        await it.until(lambda: "Toggle a technique" in it.screen_text())
        it.app.clear_notifications()
        await it.pilot.press("enter")
        await it.until(lambda: it.notices().count(queued) == 2)
        it.backend.emit(back())
        await it.until(lambda: "no link" not in it.screen_text())
        it.app.clear_notifications()
        await it.pilot.press("tab", "down", "enter")
        await it.until(lambda: it.backend.recached)
        assert it.notices().count(queued) == 2


@run
async def test_the_screen_does_not_stop_while_a_message_is_checked(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_AT_ONCE", 0.01)
    backend = Uncounted()
    async with bench((100, 40), backend=backend, shows_notices=True) as it:
        await it.until(lambda: it.app.lifecycle.alive and it.main.engine.latest)
        it.main.prompt.put("word " * 200)
        await it.pilot.press("enter")
        await it.until(lambda: "Checking the message before it is sent" in it.screen_text())
        first = it.app.chats.active
        await it.pilot.press("ctrl+n", *"next")
        await it.until(lambda: it.main.prompt.text == "next" and it.app.chats.active is not first)
        backend.counts.set()
        await it.until(lambda: it.replies and "Checking" not in it.screen_text())
        assert first.streaming and it.main.prompt.text == "next"
        await it.answered(it.replies[0])


@run
async def test_a_message_that_is_checked_returns_to_a_chat_that_is_closed_meanwhile(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_AT_ONCE", 0.01)
    backend = Uncounted()
    async with bench((100, 40), backend=backend) as it:
        await it.until(lambda: it.app.lifecycle.alive and it.main.engine.latest)
        await it.answered(await it.say("one"))
        first = it.app.chats.active
        it.main.prompt.put("word " * 200)
        await it.pilot.press("enter")
        await it.until(lambda: any("Checking" in notice for notice in it.notices()))
        await it.pilot.press("alt+w")
        await it.until(lambda: first not in it.app.chats)
        backend.counts.set()
        await it.until(lambda: it.app.chats.services.store.chat(first.chat.id).draft.startswith("word"))
        assert len(it.replies) == 1
