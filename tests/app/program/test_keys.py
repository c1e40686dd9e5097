"""The keys of the prompt, the transcript, the drawers and the monitor, where they change something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.events import Click

from engine.api.events import Admitted
from engine.api.request import Finish
from engine.api.snapshot import SchemeView, Switch
from minichat.clients.fake import FakeBackend
from minichat.features.chats.export import export
from tests.app.configured import configured
from tests.app.conftest import run, snapshot
from tests.cases import case

SCHEMES = tuple(SchemeView(name, "", 1000) for name in ("none", "int8", "int4", "fp8"))


@run
async def test_the_key_of_a_dialog_closes_it(bench: Callable[..., Any]) -> None:
    switched = snapshot(switches=(Switch("overlap", True, True),))
    async with bench(backend=FakeBackend([switched])) as it:
        await it.until(lambda: it.main.engine.latest)
        for key in "f1 f8 alt+x alt+o alt+t alt+s alt+d ctrl+o ctrl+p".split():
            with case(key):
                await it.pilot.press(key)
                await it.until(lambda: it.app.screen is not it.main)
                await it.pilot.press(key)
                await it.until(lambda: it.app.screen is it.main)
                assert it.main.prompt.has_focus


@run
async def test_function_keys_in_the_help_close_it_and_act(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("f1", "f3")
        await it.until(lambda: it.app.screen is it.main and it.drawer.display)
        await it.pilot.press("f1", "f4")
        await it.until(lambda: it.app.screen is it.main and it.quantization.display)
        await it.pilot.press("f1")
        await it.until(lambda: it.app.screen is not it.main)
        shown = it.app.screen
        await it.pilot.press("f8")
        await it.until(lambda: it.app.screen not in (it.main, shown))
        await it.pilot.press("f8")
        await it.until(lambda: it.app.screen is it.main)
        await it.pilot.press("f1", "ctrl+p")  # the help's last line names it
        await it.until(lambda: "All commands" in it.screen_text() and "Help" not in it.screen_text())


@run
async def test_a_remapped_key_of_a_dialog_closes_it(bench: Callable[..., Any], tmp_path: Path) -> None:
    configured(tmp_path, '[keys]\n"view.help" = ["f12", "ctrl+t"]\n"program.palette" = "f11"\n')
    async with bench() as it:
        for key in ("f12", "ctrl+t", "f11"):
            await it.pilot.press(key)
            await it.until(lambda: it.app.screen is not it.main)
            await it.pilot.press("f1", "ctrl+p")
            assert it.app.screen is not it.main
            await it.pilot.press(key)
            await it.until(lambda: it.app.screen is it.main)


@run
async def test_a_click_outside_closes_a_dialog_unless_something_was_typed(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        for key in ("f1", "alt+o", "ctrl+o", "alt+t"):
            await it.pilot.press(key)
            await it.until(lambda: it.app.screen is not it.main)
            await it.pilot.click(".sheet", offset=(1, 1))
            assert it.app.screen is not it.main
            await it.pilot.click(offset=(0, 0))
            await it.until(lambda: it.app.screen is it.main)
        await it.pilot.press("alt+t", "x")
        await it.pilot.click(offset=(0, 1))
        await it.pilot.press("y", "enter")
        await it.until(lambda: it.app.chats.active.chat.title == "xy")


@run
async def test_a_double_click_does_not_close_the_dialog_that_it_opened(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.click(offset=(2, 1))
        await it.until(lambda: "Fork the chat from here" in it.screen_text())
        it.app.screen.post_message(Click(it.app.screen, 2, 1, 0, 0, 1, False, False, False, chain=2))
        await it.pilot.pause()
        assert it.app.screen is not it.main
        await it.pilot.click(offset=(2, 1))
        await it.until(lambda: it.app.screen is it.main)


@run
async def test_a_key_for_a_missing_chat_shows_a_notice(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("ctrl+n", "alt+1", "alt+5")
        assert it.notices() == ["There is no chat 5"]
        assert it.app.chats.index == 0


@run
async def test_the_page_keys_scroll_the_chat_and_end_follows_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        await it.answered(reply, "\n\n".join(f"line {n}" for n in range(60)))
        await it.until(lambda: "line 59" in it.screen_text())
        await it.pilot.press("pageup", "pageup")
        await it.until(lambda: "line 59" not in it.screen_text())
        await it.pilot.press("end")
        await it.until(lambda: "line 59" in it.screen_text())


@run
async def test_older_messages_are_loaded_when_the_user_scrolls_up(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        chat = it.app.chats.active.chat
        for number in range(60):
            it.app.store.append(chat.id, "user", f"message {number}")
    async with bench() as it:
        active = it.app.chats.active
        assert (len(active.chat.messages), active.chat.earlier) == (20, 40)
        assert len((await it.say("next")).prompt) == 61
        for _ in range(12):
            await it.pilot.press("pageup")
        await it.until(lambda: active.chat.earlier == 0)
        await it.pilot.press("pageup", "pageup", "pageup", "pageup", "pageup", "pageup")
        await it.until(lambda: active.chat.messages[0].text == "message 0")


@run
async def test_find_in_this_chat(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "needle " + "hay\n\n" * 60 + "needle")
        await it.pilot.press("ctrl+f", *"needle")
        await it.until(lambda: it.main.transcript.find_count[1] == 2)
        await it.until(lambda: "1 of 2" in it.screen_text() or "2 of 2" in it.screen_text())
        first = it.main.transcript.find_count[0]
        await it.pilot.press("enter")
        await it.until(lambda: it.main.transcript.find_count[0] != first)
        await it.pilot.press("escape")
        await it.until(lambda: it.app.focused is it.main.prompt)
        assert it.main.transcript.find_count[1] == 0
        await it.until(lambda: " of 2" not in it.screen_text())


@run
@pytest.mark.parametrize(("choice", "outcome"), [("fork", 2), ("clip", 1)])
async def test_the_menu_of_a_message(bench: Callable[..., Any], choice: str, outcome: int) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        it.main.transcript.focus()
        await it.pilot.press("m")
        await it.until(lambda: "Fork the chat from here" in it.screen_text())
        await it.pilot.press("m")
        await it.until(lambda: it.app.screen is it.main)
        await it.pilot.press("m")
        await it.until(lambda: "Fork the chat from here" in it.screen_text())
        await it.pilot.press(*(["down"] if choice == "fork" else []), "enter")
        await it.until(lambda: len(it.app.chats) == outcome)
        await it.until(lambda: choice == "fork" or it.app.paths.clipboard.exists())


@run
async def test_a_command_without_a_key_can_be_given_one(bench: Callable[..., Any], tmp_path: Path) -> None:
    configured(tmp_path, '[keys]\n"reply.stop_all" = "f11"\n"chat.export" = "f9"\n"view.theme" = "f10"\n')
    async with bench() as it:
        await it.pilot.press("f9")
        await it.until(lambda: "Export to a file" in it.screen_text())
        await it.pilot.press("escape", "f10")
        await it.until(lambda: "minichat-light" in it.screen_text())
        await it.pilot.press("escape", "f1")
        await it.until(lambda: "F11 " in it.screen_text())


@run
async def test_many_mistakes_in_the_settings_are_counted(bench: Callable[..., Any], tmp_path: Path) -> None:
    configured(tmp_path, "[screen]\n" + "".join(f"wrong{n} = 1\n" for n in range(7)))
    async with bench((120, 40)) as it:
        await it.until(lambda: any("3 more problems" in each for each in it.notices()))
        assert sum("is unknown" in each for each in it.notices()) == 4


@run
async def test_a_failed_export_names_its_file(bench: Callable[..., Any], tmp_path: Path) -> None:
    full = tmp_path / "full.md"
    full.symlink_to("/dev/full")
    async with bench() as it:
        await it.answered(await it.say("hello"))
        export(it.app.context)
        await it.until(lambda: "Export to a file" in it.screen_text())
        await it.pilot.press(*str(full), "enter")
        await it.until(lambda: f"Cannot write {full}: No space left on device" in it.notices())


@run
async def test_the_monitor_shows_the_owner_of_a_request_and_ends_it(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot(), snapshot(1, running=(0,)), snapshot(2, running=(0,))])
    async with bench((140, 50), backend=backend) as it:
        reply = await it.say("hello")
        backend.emit(Admitted(1, 1.0, 0, 5))
        await it.until(lambda: "admitted" in it.screen_text())
        await it.until(lambda: "1 replying" in it.screen_text())
        assert it.main.engine.owners[0].letter == "A"
        await it.pilot.press("alt+m", "2", "P")
        await it.until(lambda: backend.updates == [(0, {"preempted": True})])
        await it.pilot.press("x")
        await it.until(lambda: reply.finished)
        await it.until(lambda: it.texts()[-1][2] == "stopped")
        rate = it.app.poller.rate
        await it.pilot.press("plus")
        assert it.app.poller.rate == 2 * rate
        await it.pilot.press("escape", "escape")
        await it.until(lambda: it.app.focused is it.main.prompt)


@run
async def test_f2_on_a_small_screen_leaves_typed_text_to_the_prompt(bench: Callable[..., Any]) -> None:
    """As on a large one: the prompt is visible below the monitor, whose keys abort and pause."""
    async with bench((80, 24)) as it:
        it.main.transcript.focus()
        await it.pilot.press("f2", *"pause x")
        assert it.monitor.display and not it.main.query_one("#panes").display
        assert it.main.prompt.text == "pause x"
        keys = [f"{key.written} {key.label}" for key in it.main.keybar.keys]
        assert keys[:2] == ["Esc chat", "Alt+M panes"]
        await it.pilot.press("f2")
        assert it.app.focused is it.main.prompt and not it.monitor.display


@run
async def test_escape_shows_the_chat_before_it_stops_the_reply(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        await it.say("hello")
        for keys in (("f2",), ("f2", "alt+m")):
            await it.pilot.press(*keys, "escape")
            assert it.main.query_one("#panes").display and it.app.focused is it.main.prompt
            assert it.app.chats.active.streaming
        await it.pilot.press("escape")
        await it.until(lambda: not it.app.chats.active.streaming)


@run
async def test_help_lists_the_current_keys(bench: Callable[..., Any], tmp_path: Path) -> None:
    configured(
        tmp_path,
        '[keys]\n"monitor.order" = "ctrl+t"\n"transcript.menu" = "f7"\n"reply.pick" = "f9"\n'
        '"chat.2" = "f11"\n"monitor.pane_1" = "v"\n"transcript.select_up" = "K"\n"program.palette" = "f12"\n',
    )
    async with bench((75, 160)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "In a chat" in it.screen_text())
        lines = [" ".join(line[1:].strip(" │").split()) for line in it.screen_text().splitlines()]
        for line in (
            "F7 menu of the message",
            "^Up ^Down previous or next message",
            "^T c l map: order, color by, letters",
            "Stepping through tokens (F9, or the message menu)",
            "Alt+1 F11 Alt+3 Alt+4 Alt+5 Alt+6 Alt+7 Alt+8 Alt+9",
            "v 2 3 4 5 6 maximize a pane, or show all",
            "Shift+Left Shift+Right K Shift+Down",
            "Terminals and tmux intercept some keys. F12 lists every command.",
        ):
            assert line in lines, line


@run
@pytest.mark.parametrize(("typed", "found"), [("/fork", "Fork this chat"), ("/", "filter")])
async def test_a_slash_before_the_filter_of_the_help_is_ignored(
    bench: Callable[..., Any], typed: str, found: str
) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "type to filter" in it.screen_text())
        await it.pilot.press(*("slash" if each == "/" else each for each in typed))
        await it.until(lambda: "Regenerate" not in it.screen_text())
        assert found in it.screen_text()


@run
@pytest.mark.parametrize(
    ("typed", "ids"), [("reply.fork", ""), ("chat.fork", "chat.fork"), ("speed", "view.why")]
)
async def test_the_filtered_help_shows_the_ids(bench: Callable[..., Any], typed: str, ids: str) -> None:
    async with bench((120, 110)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "type to filter" in it.screen_text())
        assert "view.why" not in it.screen_text()
        await it.pilot.press(*("full_stop" if each == "." else each for each in typed))
        await it.until(lambda: (f"({ids})" if ids else "Nothing matches") in it.screen_text())


@run
async def test_the_filter_of_the_help_accepts_braces(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "type to filter" in it.screen_text())
        await it.pilot.press("left_curly_bracket", "7", "right_curly_bracket")
        await it.until(lambda: "Nothing matches '{7}'. ^P lists" in it.screen_text())


@run
async def test_the_arrows_of_drawers_and_monitor_can_be_remapped(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    configured(
        tmp_path,
        '[keys]\n"decoding.up" = "k"\n"decoding.down" = ["j", "down"]\n"decoding.more" = "l"\n'
        '"quantization.down" = "j"\n"monitor.down" = "j"\n"monitor.right" = "l"\n"tokens.right" = "f7"\n',
    )
    backend = FakeBackend([snapshot(schemes=SCHEMES), snapshot(1, running=(0, 1), schemes=SCHEMES)])
    async with bench((120, 160), backend=backend) as it:
        assert [
            notice for notice in it.notices() if "monitor.letters" in notice
        ]  # where l has another action
        await it.pilot.press("f3")
        assert "k j field" in last_line(it) and "Left l change" in last_line(it)
        knobs = it.drawer.knobs
        await it.pilot.press("j", "down", "k", "up")
        assert knobs.row == 1
        params = it.app.chats.active.chat.params
        await it.pilot.press("right")
        assert it.app.chats.active.chat.params is params
        await it.pilot.press("l")
        assert it.app.chats.active.chat.params is not params
        await it.pilot.press("f4")
        await it.until(lambda: it.quantization.schemes.option_count)
        schemes = it.quantization.schemes
        before = schemes.highlighted
        await it.pilot.press("j", "down", "j")
        assert schemes.highlighted == before + 2
        await it.pilot.press("escape", "alt+m", "2")
        assert "Up j select" in last_line(it)
        await it.pilot.press("f1")
        await it.until(lambda: "In the decoding drawer" in it.screen_text())
        lines = [" ".join(line.strip(" │").split()) for line in it.screen_text().splitlines()]
        for line in (
            "k j previous or next field",
            "Left l change it",
            "Shift+Left Shift+Right change it by ten",
            "Up j previous or next scheme",
            "Up j lists: another line",
            "Left F7 previous or next token",
            "Shift+Left Shift+Right ten tokens back, forward",
        ):
            assert any(line in each for each in lines), line


@run
async def test_four_arrows_are_shown_as_arrows(bench: Callable[..., Any]) -> None:
    async with bench((120, 110)) as it:
        await it.pilot.press("alt+m")
        assert "Arrows move" in last_line(it)
        await it.pilot.press("f1")
        await it.until(lambda: "Arrows   " in it.screen_text())


def last_line(it: Any) -> str:
    return it.screen_text().splitlines()[-1]


@run
async def test_the_key_bar_lists_the_keys_of_the_focused_widget(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    configured(tmp_path, '[keys]\n"monitor.order" = "ctrl+t"\n')
    async with bench((120, 40)) as it:
        assert "order" not in last_line(it)
        await it.pilot.press("alt+m")
        await it.until(lambda: "^T order" in last_line(it) and "c color" in last_line(it))
        before = it.monitor.kvmap.tint
        await it.pilot.click("#keybar", offset=(last_line(it).index("c color"), 0))
        await it.until(lambda: it.monitor.kvmap.tint != before)
        await it.pilot.press("2")
        await it.until(lambda: "p pause" in last_line(it) and "order" not in last_line(it))
        await it.pilot.press("escape", "escape", "f4")
        await it.until(lambda: "Esc close" in last_line(it))
        it.main.transcript.focus()
        await it.until(lambda: "m menu" in last_line(it))


@run
async def test_the_key_bar_lists_the_keys_that_a_reply_needs(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        reply = await it.say("hello")
        await it.until(lambda: "Esc stop" in last_line(it))
        await it.pilot.press("f4")
        await it.until(lambda: "Esc close" in last_line(it) and "stop" not in last_line(it))
        await it.pilot.press("f4")
        reply.end(Finish.FAILED, "no room")
        await it.until(lambda: "Alt+R retry" in last_line(it) and "stop" not in last_line(it))
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        await it.answered(it.replies[-1])
        assert "retry" not in last_line(it)
