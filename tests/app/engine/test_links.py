"""Pointing at a block highlights its text, selecting text highlights its blocks; events name their chat."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from engine.api.events import Forked
from engine.api.snapshot import BlockView
from minichat.clients.fake import FakeBackend
from minichat.ui.picture import strips_of
from tests.app.conftest import run, snapshot

SIZE = 4


def blocks(*owners: tuple[int, int, int]) -> BlockView:
    """From block 0 on: (owner, place, tokens in it)."""
    columns = np.zeros((3, 64), int)
    columns[0] = -1
    columns[:, : len(owners)] = np.array(owners).T
    refs = (columns[0] >= 0).astype(int)
    return BlockView(64, refs, columns[0], columns[2], refs * 0, int(refs.sum()), 0, 0, columns[1])


def backend(*owners: tuple[int, int, int]) -> FakeBackend:
    shot = snapshot()
    return FakeBackend([replace(shot, block_size=SIZE, blocks=blocks(*owners))])


async def talk(it: Any) -> None:
    """`hello`, answered with `good day`; the prompt has six tokens, the reply one per character."""
    reply = await it.say("hello")
    it.app.chats.active.traces[reply.id].prompt_tokens = 6
    for sign in "good day":
        reply.say(sign)
    reply.end()
    await it.until(lambda: not it.app.chats.streaming)


def lit(it: Any, pane: int = -1) -> list[str]:
    """The highlighted texts."""
    transcript = it.main.panes[pane].transcript
    texts = {message.id: message.text for message in it.main.panes[pane].conversation.chat.messages}
    spans = transcript.highlights["lit"].spans
    return [texts[id][start:end] for id, found in spans.items() if id in texts for start, end in found]


@run
async def test_pointing_highlights_the_text(bench: Callable[..., Any]) -> None:
    async with bench((130, 50), backend=backend((0, 0, 4), (0, 1, 4), (0, 2, 4), (99, 0, 4))) as it:
        await talk(it)
        await it.pilot.press("alt+m", "right")
        await it.until(lambda: lit(it) == ["lo", "go"])
        assert "word108 word111" in it.screen_text(), "the block's content is shown below the map"
        assert underlined(it) == ["lo", "go"]
        await it.pilot.press("enter")
        await it.until(lambda: "Esc back" in it.screen_text())
        assert "used     4/4 +1 more  word108 word111" in it.screen_text()
        await it.pilot.press("escape", "right", "right")
        await it.until(lambda: lit(it) == [])
        await it.pilot.press("enter")
        await it.until(lambda: "text unknown" in it.screen_text())
        await it.pilot.press("escape", "left", "escape")
        await it.until(lambda: it.main.prompt.has_focus and lit(it) == [])


@run
async def test_the_text_is_that_of_the_blocks_that_are_pointed_at_now(bench: Callable[..., Any]) -> None:
    async with bench((130, 50), backend=backend((-1, 0, 0), (0, 0, 4), (0, 1, 4), (0, 2, 4))) as it:
        await talk(it)
        await it.pilot.press("alt+m", "right")
        await it.until(lambda: lit(it) == ["hel"])
        await it.pilot.press("o")  # the free block is no longer the first one
        await it.until(lambda: lit(it) == ["lo", "go"])
        assert "block 2: 1 used" in it.screen_text()
        moved = blocks((-1, 0, 0), (-1, 0, 0), (0, 0, 4), (0, 1, 4), (0, 2, 4))
        it.main.show_snapshot(replace(it.main.engine.latest, blocks=moved))
        await it.until(lambda: "block 3: 1 used" in it.screen_text() and '"word108' in it.screen_text())
        assert lit(it) == ["lo", "go"]


def underlined(it: Any) -> list[str]:
    """The text that is underlined on the screen."""
    segments = (segment for strip in strips_of(it.app.screen) for segment in strip)
    return [segment.text for segment in segments if segment.style and segment.style.underline]


@run
async def test_a_shared_prefix_is_highlighted_in_every_chat(bench: Callable[..., Any]) -> None:
    async with bench((200, 50), backend=backend((0, 0, 4), (0, 1, 4))) as it:
        await talk(it)
        await it.pilot.press("ctrl+n")
        reply = await it.say("help!")
        it.app.chats.active.traces[reply.id].prompt_tokens = 6
        await it.pilot.press("alt+m")
        it.monitor.kvmap.action_move(0, 0)
        await it.until(lambda: lit(it, 0) == ["hel"])
        assert lit(it, 1) == ["hel"], "the same tokens, whichever request computed them"
        await it.pilot.press("right")
        await it.until(lambda: lit(it, 0) == ["lo", "go"])
        assert lit(it, 1) == []


@run
async def test_selecting_highlights_blocks(bench: Callable[..., Any]) -> None:
    async with bench((130, 50), backend=backend((0, 0, 4), (0, 1, 4), (0, 2, 4))) as it:
        await talk(it)
        it.main.transcript.focus()
        await it.pilot.press("shift+up")
        await it.until(lambda: it.main.transcript.selected_spans())
        answer = it.app.chats.active.chat.messages[-1]
        assert it.main.transcript.selected_spans() == {answer.id: [(0, 8)]}
        await it.until(lambda: it.monitor.kvmap.glowing == {1, 2})
        it.app.screen.clear_selection()
        await it.until(lambda: not it.monitor.kvmap.glowing)


@run
async def test_unknown_text_is_reported(bench: Callable[..., Any]) -> None:
    async with bench((130, 50), backend=backend()) as it:
        await talk(it)
        it.main.transcript.focus()
        await it.pilot.press("ctrl+a")
        await it.until(lambda: "no longer in the cache" in it.screen_text())
        await it.app.lifecycle.switch("pocket")  # the text was computed, but by another model
        it.app.screen.clear_selection()
        await it.pilot.press("ctrl+a")
        await it.until(lambda: "blocks unknown: no known request has this text" in it.screen_text())


@run
async def test_a_selection_ends_while_the_pane_of_a_new_chat_is_created(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.main.new_chat()
        it.main.signals.selected()  # the transcript of the new pane is not on the screen yet
        await it.until(lambda: len(it.main.panes) == 2 and it.main.transcript.is_attached)
        assert it.failures == []


@run
async def test_the_monitor_shows_the_owner_of_a_second_reply(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()])
    async with bench((120, 40), backend=backend) as it:
        await it.say("hello")
        backend.emit(Forked(1, 1.0, 7, 0, 1, group=0))
        backend.emit(Forked(1, 1.0, 8, 0, 1))  # a chat of another screen
        await it.until(lambda: " A  forked" in it.screen_text() and " ?  forked" in it.screen_text())
