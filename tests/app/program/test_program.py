"""The program around the chats: its start, its error messages, its end."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, OptionList

from engine.api.errors import ModelNotFound
from engine.api.events import Died, Restarted, Restarting
from engine.api.snapshot import ReplicaView
from minichat.clients.fake import FakeBackend
from minichat.features.leaving import RESTART
from minichat.models.welcome import found_here
from minichat.shell.terminal import Terminal
from tests import impatient
from tests.app.configured import configured
from tests.app.conftest import Clock, run, snapshot
from tests.cases import case, soak


@run
async def test_the_screen_is_shown_before_the_engine_is_ready(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()])
    backend.loaded.clear()
    async with bench(backend=backend) as it:
        await it.until(lambda: backend.progress)
        backend.progress(300_000_000, 1_200_000_000)
        await it.until(lambda: "0.30 of 1.20 GB" in it.screen_text())
        assert "25%" in it.screen_text()
        it.main.prompt.put("early")
        await it.pilot.press("enter")
        await it.until(lambda: it.texts())
        assert backend.replies == []
        backend.loaded.set()
        await it.until(lambda: backend.replies)
        assert "loading" not in it.screen_text()


@run
async def test_the_first_start_lists_what_was_found(bench: Callable[..., Any]) -> None:
    shot = snapshot(memory={"device_total": 20_000_000_000}, device="NVIDIA H200")
    terminal = Terminal(ssh=False, tmux=True, unicode=True)
    async with bench(backend=FakeBackend([shot]), terminal=terminal) as it:
        await it.until(lambda: "Found" in it.screen_text())
        text = " ".join(it.screen_text().split())
        assert "Found GPU NVIDIA H200, 20.0 GB of memory, " in text
        assert "clipboard through tmux. tiny is running, with room for 1,024 tokens. Try one" in text
        assert "F1 lists the keys" in text
        await it.answered(await it.say("hello"))
        assert "Found" not in it.screen_text()
    async with bench() as it:
        await it.pilot.press("ctrl+n")
        await it.until(lambda: "F1 lists the keys" in it.screen_text())
        assert "Found" not in it.screen_text()


@pytest.mark.parametrize(
    ("colors", "named"), [("truecolor", "16 million colors"), ("256", "256 colors"), (None, "no colors")]
)
def test_detected_colors_are_named(colors: str | None, named: str) -> None:
    here = Terminal(ssh=False, tmux=False, unicode=True)
    found = found_here(snapshot(), here, colors)
    assert found.startswith(f"Found a CPU, {named}, clipboard through the terminal.")
    dry = found_here(snapshot(device="none"), here, colors)
    assert dry.startswith(f"Found a dry-run engine, {named}, ")
    two = tuple(ReplicaView(number, "ready", "", "cpu", 0, 0, 64, 0, 0) for number in (0, 1))
    fleet = found_here(snapshot(device="2 x cpu", replicas=two), here, colors)
    assert fleet.startswith(f"Found a CPU, {named}, ")
    assert "tiny is running in 2 replicas, with room for" in fleet


@run
async def test_the_greeting_names_no_colors_where_none_are_shown(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with bench() as it:
        await it.until(lambda: "Found" in it.screen_text())
        assert ", no colors," in " ".join(it.screen_text().split())


@run
async def test_a_request_that_waits_for_the_engine_can_be_stopped(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()])
    backend.loaded.clear()
    async with bench(backend=backend) as it:
        it.main.prompt.put("early")
        await it.pilot.press("enter", "escape")
        await it.until(lambda: it.texts() and it.texts()[-1][2] == "stopped")


@run
async def test_a_model_that_cannot_be_loaded_is_reported(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()], trouble=ModelNotFound("no folder has it"))
    async with bench((100, 24), backend=backend) as it:
        await it.until(lambda: "no folder has it" in it.screen_text())
        assert "no engine" in it.screen_text()


@run
async def test_a_dead_engine_shows_a_banner_and_f5_restarts_it(bench: Callable[..., Any]) -> None:
    async with bench((100, 24)) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.backend.emit(Died(3, 1.0, "a CUDA error"))
        await it.until(lambda: "the engine has stopped: a CUDA error" in it.screen_text())
        await it.pilot.press("f5")
        await it.until(lambda: it.app.lifecycle.alive)
        await it.answered(await it.say("hello"))


@run
async def test_the_engine_line_does_not_speak_of_the_old_engine_while_the_next_one_loads(
    bench: Callable[..., Any],
) -> None:
    async with bench((100, 24)) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.backend.emit(Died(3, 1.0, "a CUDA error"))
        await it.until(lambda: it.app.poller.resting)
        it.main.show_snapshot(snapshot(error="a CUDA error", state="dead"))
        await it.until(lambda: " no engine: a CUDA error" in it.screen_text())
        it.backend.loaded.clear()
        await it.pilot.press("f5")
        await it.until(lambda: "loading tiny" in it.screen_text())
        await it.until(lambda: "no engine" not in it.screen_text())
        it.backend.loaded.set()
        await it.until(lambda: "KV [" in it.screen_text())


@run
async def test_a_banner_while_a_server_restarts_its_engine(bench: Callable[..., Any]) -> None:
    async with bench((100, 24)) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.backend.emit(Restarting(3, 1.0, "a CUDA error", 2.0))
        await it.until(lambda: "the engine is being restarted  |  a CUDA error" in it.screen_text())
        it.backend.emit(Restarted(0, 2.0, 4.0))
        await it.until(lambda: "is being restarted" not in it.screen_text())
        await it.answered(await it.say("hello"))


@run
async def test_control_c_copies_then_stops_then_quits(bench: Callable[..., Any]) -> None:
    async with bench(clock=Clock()) as it:
        it.main.prompt.put("copied")
        it.main.prompt.select_all()
        await it.pilot.press("ctrl+c")
        await it.until(lambda: it.app.paths.clipboard.exists())
        assert it.app.paths.clipboard.read_text() == "copied"
        await it.say("hello")
        await it.pilot.press("ctrl+c")
        await it.until(lambda: it.texts()[-1][2] == "stopped")
        assert it.app.return_code is None
        await it.pilot.press("ctrl+c", "ctrl+c")
        await it.until(lambda: it.app.return_code == 0)


@run
async def test_control_c_with_nothing_to_stop_shows_how_to_quit(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("ctrl+c")
        await it.until(lambda: "Press ^C again to quit" in it.notices())
        assert it.app.return_code is None


@run
async def test_quitting_while_streaming_saves_and_ends_the_request(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("half")
        await it.until(lambda: it.app.chats.active.run.parts.text)
        await it.pilot.press("ctrl+q", "ctrl+q")
        await it.until(lambda: it.app.return_code == 0)
        assert it.texts()[-1] == ("assistant", "half", "stopped")
        assert reply.finished


@run
async def test_the_last_reply_is_copied_to_the_clipboard(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "take this")
        await it.pilot.press("alt+y")
        await it.until(lambda: any("Sent to the clipboard" in notice for notice in it.notices()))
        assert it.app.paths.clipboard.read_text() == "take this"


@run
async def test_help_shows_every_key(bench: Callable[..., Any]) -> None:
    async with bench((100, 110)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "Alt+K" in it.screen_text())
        for words in ("Fork this chat", "^P", "In the decoding drawer"):
            assert words in it.screen_text()
        await it.pilot.press("escape")
        assert it.app.screen is it.main


@run
async def test_help_is_filtered_while_typing(bench: Callable[..., Any]) -> None:
    async with bench((75, 110)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "Alt+K" in it.screen_text())
        await it.pilot.press(*"fork this")
        await it.until(lambda: "Alt+Y" not in it.screen_text())
        inside = (line.split("│")[1] for line in it.screen_text().splitlines() if line.count("│") == 2)
        lines = [" ".join(line.split()) for line in inside]
        assert "Chats" in lines and "Alt+K Fork this chat (chat.fork)" in lines and "View" not in lines
        it.app.screen.query_one(Input).value = "branch"  # another word for it
        await it.until(lambda: "Fork this chat" in it.screen_text())
        it.app.screen.query_one(Input).value = ""
        await it.pilot.press(*"IN the dec")  # a title brings all of its section
        await it.until(
            lambda: "previous or next field" in it.screen_text() and "Alt+K" not in it.screen_text()
        )
        await it.pilot.press("x", "y")
        await it.until(lambda: "Nothing matches 'IN the decxy'. ^P lists every" in it.screen_text())
        await it.pilot.press("f1")
        await it.until(lambda: it.app.screen is it.main)


@run
async def test_help_has_two_columns_if_the_screen_is_wide(bench: Callable[..., Any]) -> None:
    async with bench((80, 60)) as it:
        for columns, two in ((100, False), (120, True)):
            with case(columns):
                await it.pilot.resize_terminal(columns, 60)
                await it.pilot.press("f1")
                await it.until(lambda: "Alt+K" in it.screen_text())
                lines = it.screen_text().splitlines()
                top = next(line for line in lines if "│ Prompt" in line)
                assert ("In a chat" in top) is two
                if not two:
                    assert top.count("│") == 2
                assert not any("scroll" in line for line in lines[:-8])
                assert "Up Down scroll" in it.screen_text()
                await it.pilot.press("down", "down")
                await it.until(lambda: "│ Prompt" not in it.screen_text())
                await it.pilot.press("escape")


@run
async def test_help_lines_wrap_under_their_own_text(bench: Callable[..., Any]) -> None:
    async with bench((60, 110)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "Alt+K" in it.screen_text())
        lines = it.screen_text().splitlines()
        begin = next(number for number, line in enumerate(lines) if "Alt+C" in line)
        assert lines[begin + 1].index("of the last reply") == lines[begin].index("Step through the")
    async with bench((40, 60)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "Alt+K" in it.screen_text())
        lines = it.screen_text().splitlines()
        below = next(number for number, line in enumerate(lines) if "^J Alt+Enter" in line)
        assert lines[below + 1].index("New line") == lines[below - 1].index("Send")
    async with bench((80, 24)) as it:  # where a scroll bar needs space
        await it.pilot.press("f1")
        await it.until(lambda: "Edit the last message and send it" in it.screen_text())
        assert "│ again" not in it.screen_text()


@run
async def test_the_palette_shows_a_title_that_looks_like_markup(bench: Callable[..., Any]) -> None:
    async with bench((100, 60)) as it:
        it.app.chats.active.rename("pairs [b] and [/]")
        await it.pilot.press("ctrl+n")
        entry = "Go to A: pairs [b] and [/] "

        def listed() -> list[str]:
            return [str(each.prompt)[: len(entry)] for each in it.app.screen.query_one(OptionList).options]

        for typed in ("", "pairs"):
            with case(typed):
                await it.pilot.press("ctrl+p", *typed)
                await it.until(lambda: entry in listed())
                await it.pilot.press("escape")


@run
async def test_a_line_of_the_palette_has_title_group_and_key(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("ctrl+p", *"new chat")
        await it.until(lambda: re.search(r"│ New chat +Chats +\^N ", it.screen_text()))
        top = _line_of("All commands", it.screen_text())
        await it.pilot.press("z", "z")
        await it.until(lambda: "No command matches" in it.screen_text())
        assert _line_of("All commands", it.screen_text()) == top, "the line that is typed stays in its place"
        await it.pilot.resize_terminal(40, 12)
        await it.pilot.press(*["backspace"] * 4)
        await it.until(lambda: re.search(r"│ New chat +\^N ", it.screen_text()))


def _line_of(text: str, screen: str) -> int:
    return next(number for number, line in enumerate(screen.splitlines()) if text in line)


@run
async def test_a_command_that_is_selected_twice_runs_once(bench: Callable[..., Any]) -> None:
    """The second click or Enter may be on its way while the palette closes."""
    async with bench() as it:
        await it.pilot.press("ctrl+p", *"new")
        commands, field = it.app.screen.query_one(OptionList), it.app.screen.query_one(Input)
        await it.until(lambda: commands.options and "New chat" in str(commands.options[0].prompt))
        commands.highlighted = 0
        for _ in range(2):
            commands.action_select()
            field.post_message(Input.Submitted(field, ""))
        await it.until(lambda: len(it.app.chats) == 2)
        await it.pilot.pause()
        assert (len(it.app.chats), it.failures) == (2, [])


@run
async def test_the_palette_lists_every_command(bench: Callable[..., Any]) -> None:
    async with bench((180, 40)) as it:
        await it.pilot.press("ctrl+p", *"side")
        await it.until(lambda: "Toggle chats side by side" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: not it.main.side_by_side)


@run
async def test_keys_can_be_remapped_and_conflicts_are_reported(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    configured(tmp_path, '[keys]\n"chat.new" = "f9"\n"prompt.send" = "ctrl+s"\n"chat.fork" = "ctrl+q"\n')
    async with bench() as it:
        await it.until(lambda: any("ctrl+q" in notice for notice in it.notices()))
        await it.pilot.press("f9")
        assert len(it.app.chats) == 2
        await it.pilot.press("ctrl+n")
        assert len(it.app.chats) == 2
        await it.pilot.press(*"a", "enter", *"b", "ctrl+s")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt == [{"role": "user", "content": "a\nb"}]


@run
async def test_mouse_capture_can_be_turned_off(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("ctrl+g")
        assert any("Mouse capture is off" in notice for notice in it.notices())
        await it.pilot.press("ctrl+g")
        assert any("Mouse capture is on" in notice for notice in it.notices())


@run
async def test_over_ssh_the_frame_rate_is_lower(bench: Callable[..., Any]) -> None:
    async with bench(terminal=Terminal(ssh=True, tmux=False, unicode=True)) as it:
        await it.until(lambda: "ssh" in it.screen_text())
        assert it.app.settings.rates.ssh_transcript == 5


@run
@pytest.mark.parametrize("size", [(40, 12), *soak(((80, 24),), ((200, 60),))])
async def test_ascii_mode_draws_only_ascii(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size, ascii=True) as it:
        await it.answered(await it.say("hello"), "- a list\n- of two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
        await it.pilot.press("f3")
        assert it.screen_text().isascii()
        await it.pilot.press("f3", "f1")
        assert it.screen_text().isascii()
        await it.pilot.press("escape", "ctrl+p")
        await it.until(lambda: "Regenerate the last reply" in it.screen_text())
        assert it.screen_text().isascii()
        await it.pilot.press("escape")
        it.app.lifecycle.report_loss("the engine has stopped: " + "why " * 99)
        await it.until(lambda: "F5 restarts" in it.screen_text())
        assert it.screen_text().isascii()


@run
async def test_no_timers_run_while_idle(bench: Callable[..., Any]) -> None:
    async with bench((200, 60)) as it:
        await it.answered(await it.say("hello"))
        for over in ("", "ctrl+p", "ctrl+f", "alt+t", "alt+o"):
            with case(over):
                await it.pilot.press(*over.split())
                await it.until(lambda: it.app.poller.resting)
                await impatient.quiet()
                await it.pilot.press("escape")


@pytest.mark.parametrize(
    ("key", "way", "code"),
    [("f5", "F5 again to stop and restart", RESTART), ("ctrl+q", "^Q again to stop and quit", 0)],
)
@run
async def test_ending_replies_needs_confirmation(
    bench: Callable[..., Any], key: str, way: str, code: int
) -> None:
    async with bench(clock=Clock()) as it:
        reply = await it.say("hello")
        reply.say("half")
        await it.pilot.press(key)
        assert it.notices() == [f"A reply is running; press {way}"]
        assert it.app.is_running and it.app.chats.streaming
        await it.pilot.press(key)
        await it.until(lambda: it.app.return_code == code)
        assert it.texts()[-1] == ("assistant", "half", "stopped")
