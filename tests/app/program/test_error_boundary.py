"""If a part of the screen fails, only that part is closed, with a log entry and a notice."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from textual.events import MouseDown, Paste
from textual.widgets import Static

from engine.api.params import SamplingParams
from minichat.clients.fake import FakeBackend
from minichat.features import BUILT_IN
from minichat.features.feature import Context, Feature, PanelSpec, ScreenCommand
from tests.app.conftest import run, snapshot
from tests.app.decoding.test_strategies import views


class Frail(Static):
    """A third-party drawer that fails at the first snapshot."""

    def __init__(self, context: Context) -> None:
        super().__init__("here it is")

    def see_snapshot(self, _: object) -> None:
        raise RecursionError("deeper and deeper")


def toggle(context: Context) -> None:
    context.panels.toggle(context.part(Frail))


def fails(*_: object, **__: object) -> Any:
    raise RecursionError("deeper and deeper")


@contextmanager
def expected_error(it: Any, kind: type[Exception] = RecursionError) -> Iterator[None]:
    """Expect an error. The test would fail at its end for another one."""
    yield
    assert it.failures and isinstance(it.failures[0], kind), "the expected error did not occur"
    it.failures.clear()


async def talks(it: Any) -> None:
    """Check that keys, the prompt and the chat still work."""
    reply = await it.say("still there?")
    await it.answered(reply, "of course")
    await it.until(lambda: "of course" in it.screen_text())


@run
async def test_a_drawer_that_cannot_show_a_snapshot_closes(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    shot = snapshot(3, (0, 5, 6), beams=(views(),))
    async with bench((130, 45), backend=FakeBackend([shot]), params=SamplingParams(beams=4)) as it:
        reply = await it.say("hello")
        monkeypatch.setattr("minichat.features.decoding.beams.lines_of", fails)
        with expected_error(it):
            await it.pilot.press("f3")
            await it.until(lambda: not it.drawer.display)
        await it.answered(reply)
        assert any("RecursionError: deeper and deeper" in notice for notice in it.notices())
        assert any(str(it.app.paths.log) in notice for notice in it.notices())
        assert [each.exc_info is not None for each in caplog.records if each.name == "minichat.app"] == [True]
        monkeypatch.undo()
        await talks(it)
        await it.pilot.press("f3")
        await it.until(lambda: it.drawer.display)


@run
async def test_a_click_on_what_was_just_removed(bench: Callable[..., Any]) -> None:
    """Until the next layout a removed widget is still found under the mouse, as after a click on a notice."""
    async with bench() as it:
        widget = Static("a notice")
        await it.main.mount(widget)
        await it.until(lambda: "a notice" in it.screen_text())
        x, y = widget.region.offset
        at_once = MouseDown(None, x, y, 0, 0, 1, False, False, False, x, y)
        gone = widget.remove()
        while widget.parent is not None:
            await asyncio.sleep(0)
        assert it.main.get_widget_at(x, y)[0] is widget
        await it.app.on_event(at_once)
        await gone
        await talks(it)


@run
async def test_other_parts_show_a_snapshot_that_one_part_cannot(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench((120, 40), backend=FakeBackend([snapshot(7, (0,))])) as it:
        await it.pilot.press("f2")
        monkeypatch.setattr("minichat.ui.labels.facts", fails)
        shown: list[int] = []
        it.main.signals.snapshot.connect(lambda snapshot: shown.append(snapshot.step))
        with expected_error(it):
            it.main.wake()
            await it.until(lambda: shown)


@run
async def test_a_failing_part_does_not_keep_a_signal_from_the_others(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        signals, received = it.main.signals, []
        signals.chat_changed.connect(fails)
        signals.chat_changed.connect(lambda: received.append("turned"))
        with expected_error(it):
            await it.pilot.press("ctrl+n")
            await it.until(lambda: received)
        await talks(it)


@run
async def test_a_monitor_that_cannot_show_a_snapshot_closes(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once closed, it stays quiet, although it still follows the engine and fails again."""
    async with bench((160, 40), backend=FakeBackend([snapshot(7, (0,))])) as it:
        await it.until(lambda: it.monitor.display)
        with monkeypatch.context() as patch, expected_error(it):
            patch.setattr(it.monitor.rates, "remember", fails)
            it.main.wake()
            await it.until(lambda: not it.monitor.display)
            await it.until(lambda: it.notices())
            notices = it.notices()
            await it.pilot.press("f3")
            it.main.show_snapshot(snapshot(8, (0,)))
            await it.pilot.pause()
            assert it.drawer.knobs.has_focus and it.notices() == notices
            await it.pilot.press("escape")
        await talks(it)


@run
async def test_a_third_party_drawer_is_contained_like_the_built_in_ones(bench: Callable[..., Any]) -> None:
    frail = Feature(
        name="frail",
        title="Frail",
        commands=(ScreenCommand("view.frail", "View", "Frail", toggle, "f12"),),
        panel=PanelSpec(Frail, sees=Frail.see_snapshot),
    )
    async with bench(features=(*BUILT_IN, frail)) as it:
        await it.until(lambda: it.main.engine.latest)
        with expected_error(it):
            await it.pilot.press("f12")
            await it.until(lambda: any("The frail failed and was closed" in each for each in it.notices()))
        assert not it.app.context.part(Frail).display and it.main.prompt.has_focus
        await talks(it)


@run
async def test_a_feature_whose_part_cannot_be_created_loses_only_that_part(bench: Callable[..., Any]) -> None:
    broken = Feature(name="broken", title="Broken", part=fails)
    async with bench(features=(broken, *BUILT_IN)) as it:
        with expected_error(it):
            await it.until(lambda: any("deeper and deeper" in each for each in it.notices()))
        await talks(it)


@run
async def test_an_action_that_fails_affects_nothing_else(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        monkeypatch.setattr("minichat.session.open_chats.OpenChats.new", fails)
        with expected_error(it):
            await it.pilot.press("ctrl+n")
            await it.until(lambda: it.notices())
        await talks(it)


@run
async def test_a_prompt_handler_that_fails_loses_one_message(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        with monkeypatch.context() as patch, expected_error(it):
            patch.setattr(type(it.main.prompt), "on_paste", fails, raising=False)
            it.app.post_message(Paste("x"))
            await it.until(lambda: any("The prompt failed" in notice for notice in it.notices()))
        await talks(it)


@run
async def test_a_widget_that_cannot_render_shows_so_in_its_place(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        with monkeypatch.context() as patch, expected_error(it):
            patch.setattr(type(it.main.keybar), "render", fails)
            it.main.keybar.refresh()
            await it.until(lambda: "cannot draw the key bar" in it.screen_text())
            await it.until(lambda: any("The key bar failed" in notice for notice in it.notices()))
        it.main.keybar.refresh()
        await it.until(lambda: "cannot draw" not in it.screen_text())
        await talks(it)


@run
async def test_a_layout_error_closes_the_drawer(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f3")
        with monkeypatch.context() as patch, expected_error(it):
            patch.setattr(it.drawer.knobs, "get_content_height", fails)
            it.drawer.knobs.refresh(layout=True)
            await it.until(lambda: not it.drawer.display)
        await talks(it)


@run
async def test_a_dialog_that_fails_closes(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as it:
        await it.pilot.press("f1")
        await it.until(lambda: len(it.app.screen_stack) == 2)
        with monkeypatch.context() as patch, expected_error(it):
            patch.setattr(type(it.app.screen), "on_key", fails, raising=False)
            await it.pilot.press("f9")  # a value that its field does not accept
            await it.until(lambda: len(it.app.screen_stack) == 1)
        await talks(it)


@run
async def test_a_failing_timer_worker_and_task(
    bench: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio
    import gc

    async def worker() -> None:
        raise KeyError("of a worker")

    async def task() -> None:
        raise ValueError("of a task")

    async with bench() as it:
        with expected_error(it):
            it.main.set_timer(0.001, fails)
            await it.until(lambda: any("deeper" in notice for notice in it.notices()))
        with expected_error(it, KeyError):
            it.app.run_worker(worker())
            await it.until(lambda: any("of a worker" in notice for notice in it.notices()))
        with expected_error(it, ValueError):
            asyncio.create_task(task())  # noqa: RUF006
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gc.collect()
            await it.until(lambda: any("of a task" in notice for notice in it.notices()))
        await talks(it)


@run
async def test_every_widget_is_guarded(bench: Callable[..., Any]) -> None:
    """Including Textual's own widgets and those that are mounted later."""
    async with bench((200, 60)) as it:
        await it.pilot.press("f2", "f3")
        await it.pilot.press("f1")
        await it.until(lambda: len(it.app.screen_stack) == 2)
        widgets = [
            widget for screen in it.app.screen_stack for widget in screen.walk_children(with_self=True)
        ]
        loose = [each for each in widgets if not {"render_lines", "_dispatch_message"} <= vars(each).keys()]
        assert len(widgets) > 20 and not loose


@run
async def test_a_generator_left_open_by_a_dead_task_is_not_reported_as_a_failed_part(
    bench: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The loop closes it in a separate task, which cannot succeed while the generator runs."""

    async def endless() -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    async with bench() as it:
        loop, generator = asyncio.get_running_loop(), endless()
        reading = asyncio.ensure_future(anext(generator))
        await asyncio.sleep(0)
        with caplog.at_level(logging.ERROR, "minichat"):
            closing = loop.create_task(generator.aclose())
            await asyncio.wait([closing])
            del closing
            gc.collect()
            problem = RuntimeError("it runs")
            loop.call_exception_handler({"message": "open", "exception": problem, "asyncgen": generator})
        assert caplog.text.count("exception was never retrieved") == caplog.text.count("open") == 1
        assert not it.failures
        reading.cancel()
        await talks(it)


@run
async def test_a_result_for_a_wait_that_was_canceled_is_not_reported_as_a_failed_part(
    bench: Callable[..., Any],
) -> None:
    """anyio's reader of a Unix socket sets it in the turn of the loop in which the wait is canceled."""
    async with bench() as it:
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        waiting.cancel()
        loop.call_soon(waiting.set_result, None)
        await asyncio.sleep(0)
        assert not it.failures
        with expected_error(it, asyncio.InvalidStateError):  # a second result is an error of the program
            settled = loop.create_future()
            settled.set_result(None)
            loop.call_soon(settled.set_result, None)
            await asyncio.sleep(0)
