"""An exported chat is imported from its file."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minichat.chats.export import to_json
from minichat.chats.model import Chat, Message
from tests.app.conftest import run
from tests.cases import case


async def take_in(it: Any, file: Path) -> None:
    await it.command("chat.import")
    await it.until(lambda: it.app.screen.query("Input"))
    it.app.screen.query_one("Input").value = str(file)
    await it.pilot.press("enter")


@run
async def test_an_exported_chat_comes_back(bench: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        file.write_text(it.app.store.export_json(it.app.chats.active.chat.id))
        await take_in(it, file)
        await it.until(lambda: len(it.app.chats) == 2)
        assert [each.chat.title for each in it.app.chats] == ["hello", "hello"]
        assert it.app.chats.active.chat.letter != "A"
        assert it.texts() == [("user", "hello", "done"), ("assistant", "good day", "done")]
        reply = await it.say("and?")
        assert [turn["content"] for turn in reply.prompt] == ["hello", "good day", "and?"]


NO_CHATS = (
    (None, "Cannot read"),
    (b"{", "invalid JSON"),
    (b"{}", '"format" must be'),
    (b"\xff\xfe{", "not UTF-8 text"),
    ("{}".encode("utf-8-sig"), '"format" must be'),
)


@run
async def test_a_file_that_is_no_chat_is_refused(bench: Callable[..., Any], tmp_path: Path) -> None:
    async with bench() as it:
        for content, why in NO_CHATS:
            file = tmp_path / f"chat{len(it.notices())}.json"
            if content is not None:
                file.write_bytes(content)
            with case(content):
                await take_in(it, file)
                wanted = (f"{file.name}: ", why.lower())
                await it.until(
                    lambda wanted=wanted: any(all(w in each.lower() for w in wanted) for each in it.notices())
                )
                assert len(it.app.chats) == 1


@run
@pytest.mark.parametrize(
    ("name", "why"), [("~no-such-user/x.json", "No such file"), ("/dev/zero", "not a regular file")]
)
async def test_a_name_that_is_no_file_is_refused(bench: Callable[..., Any], name: str, why: str) -> None:
    async with bench(shows_notices=True) as it:
        await take_in(it, Path(name))
        await it.until(lambda: any(f"Cannot read {name}: {why}" in each for each in it.notices()))
        await it.until(lambda: it.app.screen.query("Input"))
        await it.until(lambda: "Cannot read" in it.screen_text())
        assert it.app.screen.query_one("Input").value == name, "it stays, to be corrected"
        await it.pilot.press("escape")
        assert "Cannot read" not in it.screen_text(), "the notice of the refusal has ended"


@run
async def test_home_goes_to_the_first_of_many_messages_and_everything_begins_there(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    messages = [Message(0, "user", f"message {number}") for number in range(200)]
    (tmp_path / "chat.json").write_text(to_json(Chat(0, "", "long", messages=messages)))
    async with bench() as it:
        await take_in(it, tmp_path / "chat.json")
        await it.until(lambda: "message 199" in it.screen_text())
        it.main.transcript.focus()
        await it.pilot.press("ctrl+a")
        assert it.main.get_selected_text() == "\n\n".join(each.text for each in messages)
        await it.pilot.press("home")
        await it.until(lambda: "message 0\n" in "\n".join(map(str.rstrip, it.screen_text().splitlines())))


class Held:
    """A store that imports only once it is let go."""

    def __init__(self, it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        work = it.app.store.import_json
        monkeypatch.setattr(it.app.store, "import_json", lambda text: self.go.wait(60) and work(text))


async def begin_a_long_import(it: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Held:
    chat = Chat(0, "", "long", messages=[Message(0, "user", "hay")])
    (folder / "chat.json").write_text(to_json(chat))
    held = Held(it, monkeypatch)
    await take_in(it, folder / "chat.json")
    await it.until(lambda: it.notices() == ["Importing chat.json ..."])
    return held


@run
async def test_the_screen_can_be_used_during_a_long_import(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        held = await begin_a_long_import(it, tmp_path, monkeypatch)
        await it.pilot.press(*"typed")
        assert it.main.prompt.text == "typed"
        held.go.set()
        await it.until(lambda: it.notices()[-1] == "Imported long. ^O goes to it")
        assert it.main.prompt.text == "typed" and len(it.app.chats) == 1, "who types is not interrupted"
        await it.pilot.press("ctrl+o", *"hay", "enter")
        await it.until(lambda: it.texts() == [("user", "hay", "done")])


@run
async def test_who_waits_for_a_long_import_gets_the_chat(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        held = await begin_a_long_import(it, tmp_path, monkeypatch)
        held.go.set()
        await it.until(lambda: it.texts() == [("user", "hay", "done")])
        assert it.notices()[-1] == "Imported long"
