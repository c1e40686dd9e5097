"""No retry is offered that must fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import (
    BadCheckpoint,
    BadInput,
    BadParams,
    EngineDead,
    EngineError,
    HubUnreachable,
    ModelNotFound,
    NoRoom,
    RequestTooLong,
    TemplateError,
    UnknownAdapter,
    UnsupportedModel,
)
from engine.api.events import Died, Restarted, Restarting
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import AdapterView
from minichat.clients.fake import FakeBackend
from minichat.session.decoding import in_words
from tests.app.configured import configured
from tests.app.conftest import run, snapshot
from tests.app.decoding.test_picking import letters, replied
from tests.cases import SIZES, soak


@run
async def test_no_retry_is_offered_for_a_request_that_must_fail(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        it.backend.refusal = RequestTooLong("9 tokens; tiny takes 8")
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: "failed: 9 tokens; tiny takes 8" in it.screen_text())
        assert "to retry" not in it.screen_text()
        assert "Alt+R" not in [key.written for key in it.main.keybar.keys]
        await it.pilot.press("alt+r")
        await it.until(lambda: "9 tokens; tiny takes 8" in it.notices())
        assert it.replies == []
        await it.pilot.press("alt+c")
        await it.until(lambda: "This reply has no tokens" in it.notices())
        it.main.forget_requests()  # another model may have a longer context
        await it.until(lambda: "Alt+R to retry" in it.screen_text())
        await it.pilot.press("alt+r")
        await it.until(lambda: it.replies)


REFUSED = BadParams("grammar", "unclosed group")


@run
async def test_a_refused_field_is_named_as_the_drawer_does(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.backend.refusal = BadParams("top_p", "must be above 0")
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: "failed: top-p: must be above 0" in it.screen_text())


@run
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("error", "other", "mended"),
    [
        pytest.param(REFUSED, {"temperature": 0.1}, {"grammar": None}, id="grammar"),
        *soak((BadParams("beams", "9 beams need as many rows"), {"grammar": None}, {"beams": 1})),
    ],
)
async def test_no_retry_is_offered_until_the_refused_setting_changes(
    bench: Callable[..., Any],
    size: tuple[int, int],
    error: EngineError,
    other: dict[str, Any],
    mended: dict[str, Any],
) -> None:
    params = SamplingParams(beams=9) if "beams" in mended else SamplingParams(grammar=Grammar("regex", "("))
    async with bench(size, params=params) as it:
        it.backend.refusal = error
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: f"failed: {in_words(error)}"[:40] in it.screen_text())
        active = it.app.chats.active

        def offered() -> list[bool]:
            return [
                "Alt+R" in [key.written for key in it.main.keybar.keys],
                "Alt+R to retry" in it.screen_text(),
            ]

        active.tune(active.chat.params.changed(**other))
        it.main.forget_requests()  # the same engine again
        it.main.show_snapshot(snapshot())
        it.main.label()
        await it.pilot.press("alt+r", "tab", "r", "m")
        await it.until(lambda: "Fork the chat from here" in it.screen_text())
        assert "Regenerate" not in it.screen_text()
        await it.pilot.press("escape")
        assert (offered(), it.replies) == ([False, False], [])
        assert it.notices() == [in_words(error), "There is no failed reply to retry now"]
        active.tune(active.chat.params.changed(**mended))
        await it.until(lambda: offered() == [True, True])
        await it.pilot.press("alt+r")
        await it.until(lambda: it.replies)


@run
async def test_an_invalid_grammar_offers_no_retry_at_the_next_start(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), params=SamplingParams(grammar=Grammar("regex", "("))) as it:
        it.backend.refusal = REFUSED
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: "failed: grammar" in it.screen_text())
    async with bench((120, 40)) as it:
        await it.until(lambda: it.app.lifecycle.alive and "failed: grammar" in it.screen_text())
        await it.until(lambda: "Alt+R to retry" not in it.screen_text())
        assert "Alt+R" not in [key.written for key in it.main.keybar.keys]
        it.app.chats.active.tune(SamplingParams(grammar=Grammar("regex", "a")))
        await it.until(lambda: "Alt+R to retry" in it.screen_text())


@run
@pytest.mark.parametrize("field", ["adapter", "messages"])
async def test_no_retry_is_offered_for_an_adapter_or_messages_that_are_refused(
    bench: Callable[..., Any], field: str
) -> None:
    async with bench((120, 40)) as it:
        problem = {"adapter": UnknownAdapter, "messages": TemplateError}[field]
        for count, mend in ((2, "setting"), (4, "model")):
            it.backend.refusal = problem("refused", field=field)
            it.main.prompt.put("hello")
            it.main.prompt.focus()
            await it.pilot.press("enter")
            await it.until(lambda: len(it.texts()) == count and it.texts()[-1][2] == "failed")  # noqa: B023
            await it.until(lambda: "Alt+R to retry" not in it.screen_text())
            if mend == "model":
                it.app.chats.active.chat.adapter = ""
                it.backend._snapshots = [shot := snapshot(model="another")]  # those that are polled, too
                it.main.show_snapshot(shot)
            elif field == "adapter":
                it.app.chats.active.chat.adapter = "sql"
                it.main.label()
                assert "Alt+R to retry" not in it.screen_text(), "it is not loaded"
                loaded = AdapterView("sql", 8, 1000, "folder")
                it.backend._snapshots = [shot := snapshot(adapters=(loaded,))]
                it.main.show_snapshot(shot)
            else:
                it.app.chats.active.instruct("")
                it.main.label()
                assert "Alt+R to retry" not in it.screen_text(), "nothing has changed"
                it.app.chats.active.instruct("Be brief.")
            await it.until(lambda: "Alt+R to retry" in it.screen_text())


@run
async def test_an_adapter_that_has_been_loaded_may_be_tried(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        it.app.chats.active.chat.adapter = "sql"
        it.backend.refusal = UnknownAdapter("no adapter 'sql' is loaded", field="adapter")
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: "failed: no adapter" in it.screen_text())
        for loaded, offered in (("poems", False), ("sql", True)):
            it.main.show_snapshot(snapshot(adapters=(AdapterView(loaded, 8, 1000, "folder"),)))
            it.main.label()
            await it.pilot.pause()
            await it.until(lambda offered=offered: ("Alt+R to retry" in it.screen_text()) is offered)


@run
async def test_a_lost_reply_whose_adapter_is_gone_says_why_it_cannot_be_retried(
    bench: Callable[..., Any],
) -> None:
    async with bench((120, 40)) as it:
        it.app.chats.active.chat.adapter = "sql"
        (await it.say("hello")).end(Finish.FAILED, "the rest is lost")  # the engine was restarted without it
        await it.until(lambda: "failed: the rest is lost" in it.screen_text())
        it.main.show_snapshot(snapshot())
        await it.until(lambda: "Alt+R to retry" not in it.screen_text())
        await it.pilot.press("alt+r")
        await it.until(lambda: "No adapter 'sql' is loaded" in it.notices())


@run
async def test_an_adapter_that_was_dropped_offers_no_retry_at_the_next_start(
    bench: Callable[..., Any],
) -> None:
    async with bench((120, 40)) as it:
        it.app.chats.active.chat.adapter = "sql"
        it.app.chats.services.store.change_chat(it.app.chats.active.chat.id, adapter="sql")
        it.backend.refusal = UnknownAdapter("no adapter 'sql' is loaded", field="adapter")
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: "failed: no adapter" in it.screen_text())
    async with bench((120, 40)) as it:
        await it.until(lambda: it.app.lifecycle.alive and "failed: no adapter" in it.screen_text())
        await it.until(lambda: "Alt+R to retry" not in it.screen_text())
        assert "Alt+R" not in [key.written for key in it.main.keybar.keys]
        it.app.chats.active.chat.adapter = ""
        it.main.label()
        await it.until(lambda: "Alt+R to retry" in it.screen_text())


@run
async def test_a_message_is_measured_again_for_another_engine(bench: Callable[..., Any]) -> None:
    """Also if that engine is as small: nothing is offered in between."""
    async with bench((120, 40), backend=FakeBackend([snapshot(max_context=64)])) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.backend.refusal = RequestTooLong("64 tokens; tiny takes 63")
        it.app.chats.active.send("x" * 63)
        await it.until(lambda: "failed: 64 tokens" in it.screen_text())
        assert "Alt+R to retry" not in it.screen_text()
        it.main.forget_requests()
        it.main.show_snapshot(snapshot(max_context=64))
        it.main.label()
        await it.until(lambda: it.app.chats.active.chat.messages[-1].refused)
        assert "Alt+R to retry" not in it.screen_text()
        it.main.show_snapshot(snapshot(max_context=128))
        it.main.label()
        await it.until(lambda: "Alt+R to retry" in it.screen_text())


@run
@pytest.mark.parametrize("size", SIZES)
async def test_no_retry_is_offered_while_the_engine_is_dead(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    async with bench(size) as it:
        reply = await it.say("hello")
        reply.say("half")
        await it.until(lambda: "half" in it.screen_text())
        it.backend.emit(Died(3, 1.0, "it was killed"))
        reply.end(Finish.FAILED, "it was killed")
        await it.until(lambda: "failed: it was killed" in it.screen_text())
        assert "to retry" not in it.screen_text()
        assert "Alt+R" not in [key.written for key in it.main.keybar.keys]
        asked = len(it.replies)
        it.main.transcript.focus()
        await it.pilot.press("r")
        assert it.notices() == ["There is no failed reply to retry now"]
        await it.pilot.press("alt+r")
        await it.until(lambda: "There is no engine. F5 restarts the engine" in it.notices())
        it.app.notify("another")  # a notice that is visible is not repeated
        it.main.prompt.put("typed")
        it.main.prompt.focus()
        await it.pilot.press("enter")
        await it.until(lambda: it.notices().count("There is no engine. F5 restarts the engine") == 2)
        assert it.main.prompt.text == "typed"
        assert (len(it.replies), it.texts()[-1]) == (asked, ("assistant", "half", "failed"))
        await it.pilot.press("f5")
        await it.until(lambda: it.app.lifecycle.alive and "Alt+R to retry" in it.screen_text())
        assert "Alt+R" in [key.written for key in it.main.keybar.keys]
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == asked + 1)


@run
@pytest.mark.parametrize("size", SIZES)
async def test_no_restart_is_offered_for_a_model_that_cannot_be_loaded(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    """Its files are gone, or not supported: only another model helps. A network may come back."""
    backend = FakeBackend([snapshot()])
    other = "Alt+O chooses another model"
    async with bench(size, backend=backend) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        for error, ways in (
            (ModelNotFound("no such folder"), other),
            (UnsupportedModel("it predicts no tokens"), other),
            (BadCheckpoint("cut off"), other),
            (BadInput("quantization 'fp8': no GPU"), f"Quit (^Q) and change the options; {other}"),
            (NoRoom("the GPU is full"), f"F5 restarts the program; {other}"),
            (HubUnreachable("no network"), f"F5 restarts the program; {other}"),
        ):
            backend.emit(Died(7, 1.0, "it was killed"))
            await it.until(lambda: f"F5 restarts the engine; {other}" in it.screen_text())
            backend.unloadable["tiny"] = error
            await it.pilot.press("f5")
            await it.until(lambda: f" {ways}  |  cannot load tiny: {error}"[:70] in it.screen_text())  # noqa: B023
            it.main.prompt.put("typed")
            await it.pilot.press("enter")
            await it.until(lambda: f"There is no engine. {ways.split('; ')[0]}" in it.notices())  # noqa: B023
            backend.unloadable.clear()
            await it.app.lifecycle.switch("tiny")


@run
async def test_what_the_engine_refuses_may_be_in_the_settings(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    """Without an option on the command line, "change the options" would mislead."""
    configured(tmp_path, '[engine]\nquantization = "int3"\n')
    async with bench((100, 30)) as it:
        it.backend.unloadable["tiny"] = BadInput("quantization 'int3': no scheme has that name")
        it.backend.emit(Died(7, 1.0, "it was killed"))
        await it.until(lambda: "F5 restarts the engine" in it.screen_text())
        await it.pilot.press("f5")
        await it.until(lambda: "Quit (^Q) and change the options or config.toml; Alt+O" in it.screen_text())


@run
async def test_no_retry_is_offered_while_a_server_restarts_its_engine(bench: Callable[..., Any]) -> None:
    async with bench((100, 30)) as it:
        (await it.say("hello")).end(Finish.FAILED, "it was killed")
        await it.until(lambda: "Alt+R to retry" in it.screen_text())
        it.backend.emit(Restarting(3, 1.0, "it was killed", 2.0))
        await it.until(lambda: "Alt+R to retry" not in it.screen_text())
        await it.pilot.press("alt+r")
        await it.until(lambda: "The engine is being restarted. Wait until it is ready" in it.notices())
        it.backend.emit(Restarted(0, 2.0, 4.0))
        await it.until(lambda: "Alt+R to retry" in it.screen_text())


@run
async def test_the_menu_of_a_reply_offers_no_retry_that_must_fail(bench: Callable[..., Any]) -> None:
    async with bench((100, 30)) as it:
        await it.answered(await it.say("hello"))
        it.main.transcript.focus()
        await it.pilot.press("m")
        await it.until(lambda: "Regenerate" in it.screen_text())
        await it.pilot.press("escape")
        it.backend.emit(Died(3, 1.0, "it was killed"))
        await it.until(lambda: "no engine" in it.screen_text())
        await it.pilot.press("m")
        await it.until(lambda: "Fork the chat from here" in it.screen_text())
        assert "Regenerate" not in it.screen_text()


@run
async def test_an_old_failure_is_measured_before_it_offers_a_retry(bench: Callable[..., Any]) -> None:
    """The engine refused it in an earlier session; lowering max_tokens can make it fit."""
    async with bench((120, 40), backend=FakeBackend([snapshot(max_context=64)])) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.backend.refusal = EngineDead("it is gone")
        it.main.prompt.put("x" * 40)
        await it.pilot.press("enter")
        await it.until(lambda: "Alt+R to retry" in it.screen_text())
        it.app.chats.active.tune(it.app.chats.active.chat.params.changed(max_tokens=60))
        await it.until(lambda: "Alt+R to retry" not in it.screen_text())
        assert "Alt+R" not in [key.written for key in it.main.keybar.keys]
        it.app.chats.active.tune(it.app.chats.active.chat.params.changed(max_tokens=2))
        await it.until(lambda: "Alt+R to retry" in it.screen_text())


@run
async def test_keys_that_act_on_the_active_chat_are_named_there_only(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        await it.pilot.press("ctrl+n", "alt+a")
        it.main.prompt.put("go")
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 2)
        for reply in it.replies:
            reply.say("<think>hm</think>yes")
            reply.end(Finish.FAILED, "no room")
        await it.until(lambda: it.screen_text().count("failed: no room") == 2)
        for key in "alt+2", "alt+1":
            await it.pilot.press(key)
            for words in "Alt+R to retry", "Enter to show":
                [line] = [each for each in it.screen_text().splitlines() if words in each]
                left, _, right = line.partition("▕")
                assert (words in left, words in right) == (key == "alt+1", key == "alt+2")


@run
async def test_no_reply_is_forked_where_it_cannot_go_on(bench: Callable[..., Any]) -> None:
    backend = letters()
    async with bench((120, 40), backend=backend) as it:
        await replied(it, "xabc")
        await it.pilot.press("alt+c")
        await it.until(lambda: it.picker.rows)
        backend.emit(Died(0, 0.0, "no reason"))
        await it.until(lambda: "no engine" in it.screen_text())
        await it.pilot.press("enter")
        said = "There is no engine. F5 restarts the engine"
        await it.until(lambda: it.notices() == [said])
        assert len(it.app.chats) == 1
