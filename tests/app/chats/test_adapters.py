"""A chat's LoRA adapter: chosen between messages, shown in its header, kept with it; others load and drop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.api.commands import DropAdapter, LoadAdapter
from engine.api.errors import BadInput
from engine.api.snapshot import AdapterView
from minichat.clients.fake import FakeBackend
from minichat.features import adapters
from tests.app.conftest import run, snapshot
from tests.app.decoding.test_picking import letters, replied

SQL = AdapterView("sql", 16, 3_000_000, "sql-lora")


@run
async def test_a_chat_changes_its_adapter_between_messages(bench: Callable[..., Any]) -> None:
    async with bench((130, 40), backend=FakeBackend([snapshot(adapters=(SQL,))])) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.command("chat.adapter")
        await it.until(lambda: "rank 16" in it.screen_text() and "sql-lora" in it.screen_text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: "adapter sql" in it.screen_text())
        first = await it.say("one")
        chat = it.app.chats.active.chat
        assert it.app.chats.services.store.chat(chat.id).adapter == "sql"
        adapters.use(it.app.context, "")
        first.end()
        await it.until(lambda: not it.app.chats.active.streaming)
        assert chat.messages[-1].stats.strategy.endswith("adapter sql"), "of the reply that has run"
        second = await it.say("two")
        assert (first.adapter, second.adapter) == ("sql", "")


@run
async def test_loading_and_dropping(bench: Callable[..., Any]) -> None:
    backend, received = FakeBackend([snapshot(adapters=(SQL,))]), []

    def refuse(command: DropAdapter) -> None:
        received.append(command)
        raise BadInput("adapter 'sql' is used by requests [3]")

    backend.handlers |= {LoadAdapter: received.append, DropAdapter: refuse}
    async with bench((130, 40), backend=backend) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.command("chat.adapter")
        await it.until(lambda: "load another" in it.screen_text())
        await it.pilot.press("up", "enter", *"new=/models/x", "enter")
        await it.until(lambda: "adapter new" in it.screen_text())
        await it.pilot.press("ctrl+p", *"drop the", "enter")
        await it.until(lambda: any("used by requests" in notice for notice in it.notices()))
        assert received == [LoadAdapter("new", "/models/x"), DropAdapter("sql")]
        await it.command("chat.adapter")
        await it.until(lambda: "load another" in it.screen_text())
        await it.pilot.press("up", "enter", *"nothing", "enter")
        await it.until(lambda: any("must be NAME=PATH" in notice for notice in it.notices()))


class Slow(FakeBackend):
    """Loads an adapter when told to."""

    def __init__(self) -> None:
        super().__init__([snapshot()])
        self.fetched = asyncio.Event()
        self.handlers |= {LoadAdapter: lambda _: None}

    async def send(self, command: Any) -> Any:
        if isinstance(command, LoadAdapter):
            await self.fetched.wait()
        return await super().send(command)


@run
@pytest.mark.parametrize("closed", [False, True])
async def test_an_adapter_is_used_by_the_chat_that_asked_for_it(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """Another chat may be active once it is loaded."""
    monkeypatch.setattr(adapters, "_LATE", 0.01)
    backend = Slow()
    async with bench((130, 40), backend=backend, shows_notices=True) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.answered(await it.say("one"))
        first = it.app.chats.active
        await it.command("chat.adapter")
        await it.until(lambda: "load another" in it.screen_text())
        await it.pilot.press("up", "enter", *"new=/models/x", "enter")
        await it.pilot.press("alt+w" if closed else "ctrl+n")
        await it.until(lambda: it.app.chats.active is not first)
        await it.until(lambda: "Waiting for the adapter new ..." in it.screen_text())
        backend.fetched.set()
        ended = "The adapter new is loaded." if closed else "uses the adapter new"
        await it.until(lambda: any(ended in notice for notice in it.notices()))
        await it.until(lambda: "Waiting for the adapter" not in it.screen_text())
        assert it.app.chats.active.chat.adapter == ""
        assert it.app.chats.services.store.chat(first.chat.id).adapter == ("" if closed else "new")


@run
async def test_a_place_that_the_engine_refuses_can_be_corrected(bench: Callable[..., Any]) -> None:
    backend, received = FakeBackend([snapshot()]), []

    def refuse(command: LoadAdapter) -> None:
        received.append(command.path)
        if command.path == "/nope":
            raise BadInput("there is no folder '/nope'")

    backend.handlers |= {LoadAdapter: refuse}
    async with bench((130, 40), backend=backend) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.command("chat.adapter")
        await it.until(lambda: "load another" in it.screen_text())
        await it.pilot.press("up", "enter", *"sql=/nope", "enter")
        await it.until(lambda: received and "sql=/nope" in it.screen_text())
        assert any("no folder" in notice for notice in it.notices())
        await it.pilot.press("backspace", "enter")
        await it.until(lambda: "adapter sql" in it.screen_text())
        assert received == ["/nope", "/nop"]


@run
async def test_a_drop_is_confirmed_and_names_the_chats_that_still_have_the_adapter(
    bench: Callable[..., Any],
) -> None:
    backend = FakeBackend([snapshot(adapters=(SQL,))])
    backend.handlers |= {DropAdapter: lambda _: None}
    async with bench((130, 40), backend=backend) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("ctrl+p", *"drop the", "enter")
        await it.until(lambda: "The adapter sql is dropped" in it.notices())
        adapters.use(it.app.context, "sql")
        await it.pilot.press("ctrl+p", *"drop the", "enter")
        await it.until(lambda: "The adapter sql is dropped. It is still chosen in A" in it.notices())


@run
async def test_the_list_has_the_adapter_of_the_chat_even_if_it_is_not_loaded(
    bench: Callable[..., Any],
) -> None:
    async with bench((130, 40), backend=FakeBackend([snapshot(adapters=(SQL,))])) as it:
        await it.until(lambda: it.main.engine.latest)
        adapters.use(it.app.context, "gone")
        await it.command("chat.adapter")
        await it.until(lambda: "load another" in it.screen_text())
        lines = [" ".join(line.strip("│ ").split()) for line in it.screen_text().split("\n")]
        assert any("* gone not loaded" in line for line in lines)
        assert "rank 16  3.00 MB  sql-lora" in it.screen_text()


@run
async def test_an_attached_screen_says_on_which_machine_the_folder_is(bench: Callable[..., Any]) -> None:
    async with bench(backend=FakeBackend([snapshot()], elsewhere="box:8000")) as it:
        await it.until(lambda: it.main.engine.latest)
        adapters.load(it.app.context)
        question = "Load a LoRA adapter: NAME=PATH on box:8000, or a name on the hub"
        await it.pilot.pause()
        assert question in it.screen_text()


@run
async def test_a_chat_that_another_screen_deleted_gets_no_adapter(bench: Callable[..., Any]) -> None:
    async with bench((130, 40), backend=FakeBackend([snapshot(adapters=(SQL,))])) as it:
        await it.command("chat.adapter")
        it.app.store.delete_chat(it.app.chats.active.chat.id)
        await it.pilot.press("down", "enter")
        await it.until(lambda: it.notices() == ["The chat was deleted, possibly in another window"])


@run
@pytest.mark.parametrize("again", [False, True])
async def test_the_tokens_of_a_reply_are_those_of_its_adapter(bench: Callable[..., Any], again: bool) -> None:
    """Their alternatives, too, and what continues from one of them."""
    backend = letters()
    async with bench((130, 40), backend=backend) as it:
        adapters.use(it.app.context, "sql")
        await replied(it, "xabc")
        adapters.use(it.app.context, "")
        if again:
            it.app.chats.active.traces.clear()  # as after a restart
        await it.pilot.press("alt+c")
        await it.until(lambda: it.picker.rows)
        assert {each.adapter for each in it.replies} == {"sql"}
        asked = len(it.replies)
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) > asked and it.app.chats.active.run.reply)
        await it.answered(it.replies[-1])
        assert it.replies[-1].adapter == "sql"
        assert it.app.chats.active.messages[-1].stats.strategy == "T 0.7 adapter sql"


@run
async def test_a_fork_of_a_running_reply_has_its_adapter(bench: Callable[..., Any]) -> None:
    async with bench((130, 40)) as it:
        adapters.use(it.app.context, "sql")
        first = await it.say("hello")
        adapters.use(it.app.context, "")
        await it.pilot.press("alt+k")
        await it.until(lambda: len(it.replies) == 2)
        await it.answered(it.replies[-1])
        assert it.app.chats.active.messages[-1].stats.strategy == "T 0.7 adapter sql"
        await it.answered(first)
