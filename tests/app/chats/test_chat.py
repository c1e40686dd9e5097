"""One chat, from the keyboard to the screen and the store."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets._toast import Toast

from engine.api.errors import EngineDead
from engine.api.events import Delta
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from minichat.chats.errors import StoreBusy
from minichat.clients.fake import FakeBackend
from minichat.features.chats import chats
from minichat.ui.main import MainScreen
from minichat.ui.transcript import Transcript
from tests.app.conftest import run, snapshot


@run
async def test_a_reply_streams_to_the_screen(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        assert reply.prompt == [{"role": "user", "content": "hello"}]
        reply.say("**good**")
        await it.until(lambda: "good" in it.screen_text())
        assert it.texts()[-1] == ("assistant", "", "streaming")
        await it.answered(reply, " day")
        assert it.texts() == [("user", "hello", "done"), ("assistant", "**good** day", "done")]
        assert it.app.chats.active.chat.messages[-1].stats.tokens == 2
        assert it.app.chats.active.chat.title == "hello"


@run
@pytest.mark.parametrize(
    ("most", "why"), [(9, "stopped: max tokens (9) reached"), (None, "stopped: the context is full")]
)
async def test_a_truncated_reply_shows_why(bench: Callable[..., Any], most: int | None, why: str) -> None:
    async with bench(params=SamplingParams(max_tokens=most)) as it:
        reply = await it.say("hello")
        reply.say("There once was a peacock called")
        reply.end(Finish.LENGTH)
        await it.until(lambda: why in it.screen_text())
        assert it.texts()[-1][1:] == ("There once was a peacock called", "stopped")


@run
async def test_a_small_cache_is_not_taken_for_the_models_context(bench: Callable[..., Any]) -> None:
    small = replace(snapshot(), max_context=40, context_bound="blocks")
    async with bench(backend=FakeBackend([small])) as it:
        it.main.show_snapshot(small)
        for number in range(3):
            reply = await it.say(f"message {number}")
            reply.say("many words")
            reply.end(Finish.LENGTH)
            await it.until(lambda: not it.app.chats.streaming)
        assert it.texts()[-1][2] == "stopped"
        assert "stopped: the KV cache is full; give it more blocks" in it.screen_text()
        said = "A with room for a reply is longer than the KV cache: it no longer sees"
        assert any(each.startswith(said) for each in it.notices())


@run
async def test_a_reply_that_a_stop_text_ended_names_it(bench: Callable[..., Any]) -> None:
    async with bench(params=SamplingParams(stop=("\n\n", "END"), n=2)) as it:
        reply = await it.say("hello")
        reply.send(Delta(reply.id, (1,), "another", choice=1))
        reply.send(Delta(reply.id, finish=Finish.STOP, choice=1, left=1, stop="\n\n"))
        reply.send(Delta(reply.id, (1,), "There once was"))
        reply.send(Delta(reply.id, finish=Finish.STOP, stop="END"))
        await it.until(lambda: 'stopped: stop text "END" reached' in it.screen_text())
        first, second = [each.chat.messages[-1] for each in it.app.chats]
        assert (first.text, first.state) == ("There once was", "stopped")
        assert (second.text, second.error) == ("another", 'stop text "\\n\\n" reached')


@run
async def test_the_next_turn_includes_the_conversation(bench: Callable[..., Any]) -> None:
    async with bench(system="be brief") as it:
        await it.answered(await it.say("one"), "first")
        reply = await it.say("two")
        assert [turn["content"] for turn in reply.prompt] == ["be brief", "one", "first", "two"]


@run
async def test_a_model_without_a_template_continues_the_text(bench: Callable[..., Any]) -> None:
    from minichat.clients.fake import FakeBackend
    from tests.app.conftest import snapshot

    async with bench(backend=FakeBackend([snapshot()], has_template=False)) as it:
        await it.answered(await it.say("Once"), " upon")
        assert (await it.say(" a time")).prompt == "Once upon a time"


@run
async def test_escape_stops_and_keeps_the_partial_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("half")
        await it.until(lambda: it.app.chats.active.run.parts.text)
        await it.pilot.press("escape")
        await it.until(lambda: not it.app.chats.active.streaming)
        assert it.texts()[-1] == ("assistant", "half", "stopped")


@run
async def test_a_failure_is_shown_at_the_reply_and_r_retries_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("ha")
        reply.end(Finish.FAILED, "3 blocks are missing")
        await it.until(lambda: not it.app.chats.active.streaming)
        await it.until(lambda: "3 blocks are missing" in it.screen_text())
        it.main.transcript.focus()
        await it.pilot.press("r")
        await it.until(lambda: len(it.replies) == 2)
        await it.answered(it.replies[-1], "well")
        assert it.texts() == [("user", "hello", "done"), ("assistant", "well", "done")]


@run
async def test_an_engine_error_fails_the_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.backend.refusal = EngineDead("it is gone")
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: it.texts() and it.texts()[-1][2] == "failed")
        assert it.app.chats.active.chat.messages[-1].error == "it is gone"


@run
async def test_a_prompt_that_cannot_be_stored_is_kept(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:

        def refuse(*_: object, **__: object) -> None:
            raise StoreBusy("another minichat writes")

        monkeypatch.setattr(it.app.store, "add_turn", refuse)
        it.main.prompt.put("precious")
        await it.pilot.press("enter")
        await it.until(lambda: "Another minichat writes" in it.notices())
        assert it.main.prompt.text == "precious"


@run
async def test_an_internal_error_fails_only_one_reply(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:

        async def break_down(*_: object, **__: object) -> None:
            raise ZeroDivisionError("by zero")

        with monkeypatch.context() as broken:
            broken.setattr(it.backend, "submit", break_down)
            it.main.prompt.put("hello")
            await it.pilot.press("enter")
            await it.until(lambda: it.texts() and it.texts()[-1][2] == "failed")
        assert it.app.chats.active.chat.messages[-1].error == "ZeroDivisionError: by zero"
        await it.answered(await it.say("again"))


@run
async def test_closing_a_chat_ends_its_pending_request(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        submit, begun, go_on = it.backend.submit, asyncio.Event(), asyncio.Event()

        async def slowly(*asked: Any, **named: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await submit(*asked, **named)

        monkeypatch.setattr(it.backend, "submit", slowly)
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await begun.wait()
        closing = asyncio.create_task(chats.close(it.app.context))
        await asyncio.sleep(0)
        go_on.set()
        await closing
        assert it.replies[0].finished


@run
async def test_retry_replaces_the_last_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "one")
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        await it.answered(it.replies[-1], "two")
        assert it.texts() == [("user", "hello", "done"), ("assistant", "two", "done")]


@run
@pytest.mark.parametrize("key", ["alt+e", "alt+r"])
async def test_a_running_reply_must_be_stopped_first(bench: Callable[..., Any], key: str) -> None:
    async with bench(shows_notices=True) as it:
        it.app.NOTIFICATION_TIMEOUT = 100
        await it.answered(await it.say("hello"))
        reply = await it.say("again")
        await it.pilot.press(key)
        await it.until(lambda: it.notices() == ["A is still replying. Press Esc to stop"])
        assert not reply.finished
        await it.until(lambda: it.app.screen.query(Toast))
        await it.answered(reply)
        await it.until(lambda: not it.app.screen.query(Toast))


@run
async def test_a_message_to_all_panes_names_a_way_to_end_the_replies_of_the_others(
    bench: Callable[..., Any],
) -> None:
    async with bench((200, 50)) as it:
        reply = await it.say("hello")
        await it.pilot.press("ctrl+n", "alt+a", *"to all", "enter")
        notice = "A is still replying. To stop: ^P, Stop all replies"
        await it.until(lambda: it.notices()[-1:] == [notice])
        await it.command("reply.stop_all")
        await it.answered(reply)


@run
async def test_edit_replaces_the_message_and_all_after_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        it.main.prompt.put("not sent yet")
        await it.pilot.press("alt+e")
        assert it.main.prompt.text == "hello"
        await it.pilot.press("escape")
        assert it.main.prompt.text == "not sent yet"
        await it.pilot.press("alt+e")
        reply = await it.say("good bye")
        assert reply.prompt == [{"role": "user", "content": "good bye"}]
        await it.answered(reply, "yes")
        assert [text for _, text, _ in it.texts()] == ["good bye", "yes"]


@run
async def test_a_prompt_sent_while_a_reply_runs_is_kept(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.say("hello")
        it.main.prompt.put("more")
        await it.pilot.press("enter")
        await it.until(lambda: any("still replying" in notice for notice in it.notices()))
        await it.pilot.press("enter", "enter")
        await it.pilot.pause()
        assert sum("still replying" in notice for notice in it.notices()) == 1, "they would fill the screen"
        assert it.main.prompt.text == "more"


@run
async def test_a_streaming_reply_is_saved_each_second(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        it.app.chats.active.run.saved -= 2
        reply.say("kept")
        await it.until(lambda: it.app.chats.active.run.parts.text)
        kept = it.app.store.open_chats()[0].messages[-1]
        assert (kept.text, kept.state) == ("kept", "streaming")


@run
async def test_chats_are_restored(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press("ctrl+n")
        reply = await it.say("and you")
        reply.say("cut")
        await it.until(lambda: it.app.chats.active.run.parts.text)
        it.main.prompt.put("a draft")
        await it.app.action_quit()
    async with bench() as it:
        assert [each.chat.title for each in it.app.chats] == ["hello", "and you"]
        assert it.texts()[-1] == ("assistant", "cut", "stopped")
        assert it.main.prompt.text == "a draft"


@run
async def test_reasoning_is_stored_separately(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("<thi")
        reply.say("nk>hm, well</th")
        await it.until(lambda: it.app.chats.active.run.parts.thinking)
        await it.answered(reply, "ink>\n\nyes")
        message = it.app.chats.active.chat.messages[-1]
        assert (message.reasoning, message.text) == ("hm, well", "yes")
        assert [turn["content"] for turn in (await it.say("so?")).prompt] == ["hello", "yes", "so?"]


@run
async def test_reasoning_that_the_template_opens_is_no_answer(bench: Callable[..., Any]) -> None:
    """As with QwQ. A grammar leaves no room for it."""
    async with bench() as it:
        it.backend.opens_thinking = True
        await it.answered(await it.say("hello"), "hm, well\n</think>\n\nyes")
        it.app.chats.active.tune(SamplingParams(grammar=Grammar("regex", "no")))
        await it.answered(await it.say("so?"), "no")
        replies = [each for each in it.app.chats.active.chat.messages if each.role == "assistant"]
        assert [(each.reasoning, each.text) for each in replies] == [("hm, well", "yes"), ("", "no")]


@run
async def test_enter_in_an_empty_prompt_shows_reasoning(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "<think>hm, well</think>yes")
        await it.until(lambda: "Enter to show" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: "Enter to hide" in it.screen_text() and "hm, well" in it.screen_text())
        await it.pilot.press("alt+w", "alt+z")
        await it.until(lambda: "Enter to hide" in it.screen_text() and "hm, well" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: "Enter to show" in it.screen_text())


@run
async def test_the_head_of_a_reply_shows_what_it_does_now(bench: Callable[..., Any]) -> None:
    """Also where only a provisional text is visible, and when reasoning becomes text."""
    async with bench() as it:
        reply = await it.say("hello")
        heads = lambda: [row for row in it.screen_text().splitlines() if "assistant" in row]  # noqa: E731
        await it.until(lambda: "waiting" in heads()[-1])
        reply.send(Delta(reply.id, (1,), tail="a hypothesis of a search"))
        await it.until(lambda: "writing" in heads()[-1])
        await it.answered(reply, "text")
        reply = await it.say("again")
        reply.say("<think>hm, well")
        await it.until(lambda: "thinking" in heads()[-1])
        reply.say("</think>yes")
        await it.until(lambda: "writing" in heads()[-1])


@run
async def test_the_status_line_shows_whether_replies_run(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        footer = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await it.until(lambda: "ready" in footer())
        first = await it.say("one")
        await it.until(lambda: "1 replying" in footer() and "ready" not in footer())
        await it.pilot.press("ctrl+n")
        second = await it.say("two")
        await it.until(lambda: "2 replying" in footer())
        await it.answered(first)
        await it.answered(second)
        await it.until(lambda: "ready" in footer())


@run
async def test_an_engine_is_not_ready_before_it_begins_to_load(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, label = [], MainScreen.label

    def labeled(screen: MainScreen) -> None:
        label(screen)
        shown.append(screen.keybar.render().plain.strip())

    monkeypatch.setattr(MainScreen, "label", labeled)
    async with bench() as it:
        await it.until(lambda: "ready" in it.screen_text().splitlines()[-1])
    assert shown[0].startswith("loading") and shown[-1].startswith("ready")


@run
async def test_a_lost_engine_is_not_ready(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.lifecycle.report_loss("it fell over")
        await it.until(lambda: "no engine" in it.screen_text().splitlines()[-1])
        assert "ready" not in it.screen_text().splitlines()[-1]


@run
async def test_the_whole_address_of_a_link_is_shown_before_it_is_opened(bench: Callable[..., Any]) -> None:
    address = "https://example.org/" + "a" * 180 + "/end"
    async with bench() as it:
        it.main.pane.transcript.post_message(Transcript.LinkClicked(address))
        await it.until(lambda: "Open in the browser" in it.screen_text())
        assert address in "".join(re.findall(r"│ +(\S+) +│", it.screen_text()))
