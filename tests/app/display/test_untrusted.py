"""Whatever is pasted, stored or generated: none of it reaches the terminal as a control sequence."""

from collections.abc import Callable
from typing import Any

import pytest
from textual.events import Paste

from minichat.chats.store import Store
from minichat.shell.first import First
from minichat.shell.paths import locate
from tests.app.conftest import Bench, run
from tests.cases import one_of

EVIL = "\x1b]52;c;aGk=\x07\x1b[31mred\x9b2J\x00\x7f \u202egnol"


def harmless(it: Bench) -> bool:
    text = it.screen_text().replace("\n", "")
    return not any(ord(sign) < 32 or 126 < ord(sign) < 160 or sign == "\u202e" for sign in text)


@run
@pytest.mark.parametrize("where", one_of(2, ["", "alt+t", "alt+s", "ctrl+o", "ctrl+f", "alt+o"]))
async def test_pasted_text_is_shown_not_obeyed(bench: Callable[..., Any], where: str) -> None:
    async with bench((100, 24)) as it:
        await it.until(lambda: it.app.lifecycle.ready.is_set())
        await it.pilot.press(*filter(None, [where]))
        await it.pilot.pause()
        it.app.post_message(Paste(EVIL))
        await it.until(lambda: "red" in it.screen_text())
        assert harmless(it)


@run
async def test_pasted_text_is_sent_as_shown(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.post_message(Paste(f"one\r\ntwo\rthree\tx {EVIL}"))
        await it.until(lambda: "red" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"] == "one\ntwo\nthree\tx ␛]52;c;aGk=␇␛[31mred�2J␀␡ �gnol"
        await it.answered(it.replies[0])
        assert harmless(it)


@run
async def test_stored_text_is_harmless_wherever_it_is_shown(bench: Callable[..., Any], tmp_path: Any) -> None:
    store = Store(locate({"HOME": str(tmp_path)}).chats)
    chat = store.create_chat(f"title {EVIL}", f"system {EVIL}")
    store.append(chat.id, "user", f"said {EVIL}")
    store.append(chat.id, "assistant", EVIL, state="failed", error=f"error {EVIL}")
    store.keep_draft(chat.id, f"draft {EVIL}")
    store.close()
    async with bench((120, 30)) as it:
        await it.until(lambda: "draft" in it.screen_text())
        for keys in ("", "alt+e", "alt+t", "alt+s", "ctrl+o", "ctrl+o s a i d", "ctrl+p g o space t o"):
            await it.pilot.press(*keys.split())
            assert harmless(it), keys
            await it.pilot.press("escape")
            await it.pilot.pause()


@run
@pytest.mark.parametrize("send", [True, False])
async def test_text_from_the_command_line_is_harmless(bench: Callable[..., Any], send: bool) -> None:
    async with bench(first=First(text=f"first {EVIL}", send=send)) as it:
        await it.until(lambda: "first" in it.screen_text())
        assert harmless(it)


@run
async def test_an_error_message_is_harmless(bench: Callable[..., Any]) -> None:
    async with bench((160, 24)) as it:
        await it.until(lambda: it.app.lifecycle.ready.is_set())
        it.app.lifecycle.report_loss(f"lost\n{EVIL}")
        it.app.report(f"refused\n{EVIL}")
        await it.until(lambda: "lost" in it.screen_text())
        assert harmless(it)
        assert all(notice.isprintable() for notice in it.notices())


@run
async def test_brackets_are_text_and_not_markup(bench: Callable[..., Any]) -> None:
    async with bench((100, 24)) as it:
        await it.until(lambda: it.app.lifecycle.ready.is_set())
        it.app.chats.active.rename("[name] [red]x")
        await it.pilot.press("alt+d")
        await it.until(lambda: 'Delete "[name] [red]x" and' in it.screen_text())
        await it.pilot.press("escape", "f3", "ctrl+s")
        await it.until(lambda: "preset named" in it.screen_text())
        await it.pilot.press(*"[b]")
        await it.pilot.press("enter")
        await it.until(lambda: "Saved the preset [b]" in it.notices())
        await it.pilot.press("escape")
        it.main.prompt.put("see @./no[1][/b].txt then")
        await it.until(lambda: "no such file: ./no[1][/b].txt" in it.screen_text())
