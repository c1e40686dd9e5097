"""What the user sees and does: following, folding, retrying, clicking, resizing."""

import pytest

from minichat.chats.model import Message
from minichat.ui.picture import strips_of
from minichat.ui.transcript import ASCII, Transcript, window
from tests.widgets.transcript.reader import reading, reply, scene, streaming, user
from tests.widgets.transcript.test_drawing import sendable
from tests.widgets.transcript.texts import EVERYTHING

LINES = "\n\n".join(f"line {number}" for number in range(40))


@scene
async def test_it_follows_the_end_until_the_user_scrolls_up() -> None:
    async with reading() as reader:
        reader.transcript.show([user(LINES), streaming()], "a")
        await reader.settled()
        assert reader.transcript.following
        reader.transcript.extend("first words")
        await reader.settled()
        assert "first words" in reader.drawn()
        await reader.press("pageup")
        top = reader.lines()[0]
        assert not reader.transcript.following
        reader.transcript.extend("\n\nmore\n\nand more")
        await reader.settled()
        assert reader.lines()[0] == top
        assert reader.lines()[-1].strip() == "-- ↓ 4 new lines, End to follow --"
        await reader.press("end")
        assert reader.transcript.following
        assert "and more" in reader.drawn()
        assert "End to follow" not in reader.drawn()


@scene
async def test_scrolling_down_to_the_end_resumes_following() -> None:
    async with reading() as reader:
        reader.transcript.show([user(LINES)], "a")
        await reader.settled()
        await reader.press("up", "up")
        assert not reader.transcript.following
        await reader.press("down", "down")
        assert reader.transcript.following


@scene
async def test_scrolling_up_moves_the_text_by_the_requested_lines() -> None:
    async with reading() as reader:
        reader.transcript.show(
            [reply("word " * 60 + "\n\n" + EVERYTHING, number) for number in range(30)], "a"
        )
        await reader.settled()
        before = reader.lines()
        for _ in range(40):
            await reader.press("up")
            await reader.settled()  # on a slow machine a long text is measured in several slices
            after = reader.lines()
            assert after[1:] == before[:-1]
            before = after


@scene
async def test_a_page_up_and_a_page_down_return_to_the_same_line() -> None:
    async with reading() as reader:
        reader.transcript.show([reply(EVERYTHING, number) for number in range(30)], "a")
        await reader.settled()
        await reader.press("pageup")
        await reader.settled()
        before = reader.lines()
        for key in ("pageup", "pageup", "pagedown", "pagedown"):
            await reader.press(key)
            await reader.settled()
        assert reader.lines() == before


@scene
async def test_lines_that_are_only_measured_later_are_not_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a text is read in many slices, and its height is estimated until then."""
    monkeypatch.setattr(window, "budget", lambda: lambda: True)
    async with reading() as reader:
        reader.transcript.show([reply(EVERYTHING, number) for number in range(30)], "a")
        await reader.settled()
        for keys in (["pageup"] * 3, ["pagedown"], ["pageup"] * 12, ["pagedown"] * 5):
            for key in keys:
                await reader.press(key)
                await reader.settled()
                assert "to follow" not in "\n".join(reader.lines())
        reader.transcript.append(reply("one\n\ntwo", 31))
        await reader.settled()
        assert "new lines, End to follow" in reader.lines()[-1]


@scene
async def test_another_width_adds_no_new_lines() -> None:
    async with reading() as reader:
        reader.transcript.show([reply(EVERYTHING + "\n\n" + "word " * 200, n) for n in range(9)], "a")
        await reader.settled()
        await reader.press("pageup", "pageup")
        for width in (30, 70, 25, 50):
            await reader.pilot.resize_terminal(width, 20)
            await reader.settled()
            assert "to follow" not in "\n".join(reader.lines())


@scene
async def test_the_tail_is_dim_and_replaced_until_it_becomes_text() -> None:
    async with reading() as reader:
        reader.transcript.show([streaming()], "a")
        reader.transcript.extend("The sky is", " blue or")
        await reader.settled()
        assert "The sky is blue or" in reader.drawn()
        strip = strips_of(reader.app.screen)[1]
        certain, tail = (next(s for s in strip if word in s.text).style for word in ("sky", "blue"))
        assert certain != tail
        reader.transcript.extend("", " green")
        await reader.settled()
        assert "The sky is green" in reader.drawn()
        reader.transcript.settle(reply("The sky is green."))
        await reader.settled()
        assert reader.lines()[1] == "The sky is green."


@scene
async def test_short_reasoning_took_less_than_a_second() -> None:
    async with reading((60, 20)) as reader:
        reader.transcript.show([], "a")
        reader.transcript.append(streaming())
        reader.transcript.extend("", "hm", reasoning=True)
        await reader.settled()
        reader.app.now += 0.4
        reader.transcript.extend("Four.")
        reader.transcript.settle(reply("Four.", reasoning="hm"))
        await reader.settled()
        assert "thought for less than 1 s, 1 word  Enter" in reader.lines()[1]


@scene
async def test_how_long_a_reply_thought_that_an_earlier_screen_began_is_not_known() -> None:
    async with reading((60, 20)) as reader:
        reader.transcript.show([streaming()], "a")
        reader.transcript.extend("", "hm", reasoning=True)
        await reader.settled()
        reader.app.now += 4
        reader.transcript.extend("Four.")
        reader.transcript.settle(reply("Four.", reasoning="hm"))
        await reader.settled()
        assert "thought 1 word  Enter" in reader.lines()[1]


@scene
async def test_reasoning_is_shown_while_it_streams_and_then_folded() -> None:
    async with reading((60, 20)) as reader:
        reader.transcript.show([], "a")
        reader.transcript.append(streaming())
        reader.transcript.extend("", "let me think", reasoning=True)
        await reader.settled()
        assert reader.lines()[:2] == ["▌ assistant a  12:01  thinking", "let me think"]
        reader.app.now = 12.0
        reader.transcript.extend("Four.")
        reader.transcript.settle(reply("Four.", reasoning="let me think\n\nabout *it*"))
        await reader.settled()
        assert reader.lines()[1:3] == ["▸ thought for 12 s, 5 words  Enter to show", "Four."]
        await reader.press("enter")
        assert reader.lines()[1:6] == [
            "▾ thought for 12 s, 5 words  Enter to hide",
            "let me think",
            "",
            "about it",
            "Four.",
        ]
        await reader.pilot.click(Transcript, offset=(2, 1))
        await reader.settled()
        assert reader.lines()[2] == "Four."


@scene
async def test_reasoning_that_is_shown_adds_no_new_lines() -> None:
    async with reading((60, 20)) as reader:
        reader.transcript.show([reply(LINES, reasoning=LINES), user("Go on", 3), streaming(4)], "a")
        await reader.settled()
        await reader.press("home", "enter")
        assert "Enter to hide" in reader.drawn()
        assert "new line" not in reader.drawn()
        reader.transcript.extend("well\n\nthen")
        await reader.settled()
        assert reader.lines()[-1].strip() == "-- ↓ 3 new lines, End to follow --"
        await reader.press("enter")
        assert "Enter to show" in reader.drawn()
        assert reader.lines()[-1].strip() == "-- ↓ 3 new lines, End to follow --"


@scene
async def test_a_failed_reply_shows_why_and_offers_a_retry() -> None:
    async with reading() as reader:
        failed = Message(7, "assistant", "par", state="failed", error="3 blocks short\x1b[2J")
        reader.transcript.show([user("Hi"), failed], "a")
        await reader.settled()
        assert "✗ failed: 3 blocks short␛[2J  r to retry" in reader.drawn()
        await reader.press("r")
        await reader.pilot.click(Transcript, offset=(4, reader.lines().index("par") + 1))
        await reader.settled()
        asked = [event for event in reader.app.asked if isinstance(event, Transcript.RetryRequested)]
        assert [event.message_id for event in asked] == [7, 7]


@scene
async def test_the_offer_of_a_retry_is_not_broken_into_two_lines() -> None:
    async with reading() as reader:
        width = reader.transcript.size.width - 1  # beside the scroll bar
        for spare, lines in ((11, 2), (12, 1)):
            error = "x" * (width - len("✗ failed: ") - spare)
            failed = Message(7, "assistant", "par", state="failed", error=error)
            reader.transcript.show([user("Hi"), failed], "a")
            await reader.settled()
            at = next(at for at, line in enumerate(reader.lines()) if "failed" in line)
            shown = "".join(reader.lines()[at : at + lines])
            assert shown == f"✗ failed: {error}{'  ' if lines == 1 else ''}r to retry"


@scene
async def test_only_the_newest_message_offers_a_retry() -> None:
    """A retry of an earlier one would remove what follows it."""
    async with reading() as reader:
        failed = Message(7, "assistant", "par", state="failed", error="gone")
        reader.transcript.show([user("Hi"), failed], "a")
        await reader.settled()
        assert "r to retry" in reader.drawn()
        for shown in ("appended", "reloaded"):
            if shown == "appended":
                reader.transcript.append(user("Again"))
            else:
                reader.transcript.show([user("Hi"), failed, user("Again")], "a")
            await reader.settled()
            assert "✗ failed: gone" in reader.drawn() and "r to retry" not in reader.drawn()
            await reader.press("r")
            await reader.pilot.click(Transcript, offset=(4, reader.lines().index("par") + 1))
            await reader.settled()
            assert not [event for event in reader.app.asked if isinstance(event, Transcript.RetryRequested)]


@scene
async def test_a_stopped_reply_shows_so() -> None:
    async with reading() as reader:
        reader.transcript.show([Message(1, "assistant", "half", state="stopped")], "a")
        await reader.settled()
        assert reader.lines()[1:3] == ["half", "stopped"]


@scene
async def test_links_and_headers_can_be_clicked() -> None:
    async with reading() as reader:
        reader.transcript.show([reply("see [here](https://example.org/a) now", 5)], "a")
        await reader.settled()
        reader.app.CLICK_CHAIN_TIME_THRESHOLD = 0.0  # separate clicks, no double click
        for offset in ((5, 1), (1, 1), (3, 0)):
            await reader.pilot.click(Transcript, offset=offset)
        link, menu = reader.app.asked
        assert isinstance(link, Transcript.LinkClicked)
        assert link.address == "https://example.org/a"
        assert isinstance(menu, Transcript.MessageMenu)
        assert menu.message_id == 5


@scene
async def test_keys_act_on_the_selected_message() -> None:
    async with reading() as reader:
        reader.transcript.show([user(f"message {number}", number) for number in range(4)], "a")
        await reader.settled()
        await reader.press("ctrl+down", "m")
        assert reader.lines()[3].startswith("> you")
        await reader.press("end", "m")
        assert [getattr(event, "message_id", None) for event in reader.app.asked] == [1, 3]


@scene
@pytest.mark.parametrize("text", ["short", LINES])
async def test_from_the_end_the_last_message_is_chosen_first(text: str) -> None:
    """Also if all messages fit on the screen."""
    async with reading() as reader:
        reader.transcript.show([user(text, number) for number in range(3)], "a")
        await reader.settled()
        for number in (2, 1):
            await reader.press("ctrl+up")
            assert reader.transcript.chosen is not None and reader.transcript.chosen.id == number


@scene
async def test_a_resize_keeps_the_text_at_the_top() -> None:
    async with reading((60, 15)) as reader:
        words = " ".join(f"word{number}" for number in range(400))
        reader.transcript.show([user(words, number) for number in range(4)], "a")
        await reader.settled()
        await reader.scroll(60)
        first = reader.lines()[0].split()[0]
        await reader.pilot.resize_terminal(37, 15)
        await reader.settled()
        assert first in reader.lines()[0]


@scene
async def test_a_resize_while_streaming_shows_the_same_as_a_fresh_screen() -> None:
    async with reading((60, 30)) as reader:
        reader.transcript.show([streaming()], "a")
        for at in range(0, len(EVERYTHING), 9):
            reader.transcript.extend(EVERYTHING[at : at + 9])
            if at % 90 == 0:
                await reader.pilot.resize_terminal(30 + at % 41, 10 + at % 23)
        reader.transcript.settle(reply(EVERYTHING))
        await reader.pilot.resize_terminal(50, 24)
        await reader.settled()
        streamed = reader.lines()
        reader.transcript.show([reply(EVERYTHING)], "a")
        await reader.settled()
        assert streamed == reader.lines()


@scene
async def test_older_messages_are_added_above_the_visible_text() -> None:
    async with reading() as reader:
        reader.transcript.show([user(LINES, 10)], "a")
        await reader.settled()
        await reader.scroll(5)
        before = reader.lines()
        reader.transcript.prepend([reply(EVERYTHING, number) for number in range(9)])
        await reader.settled()
        assert reader.lines() == before
        await reader.scroll(0)
        assert reader.lines()[1] == "Title"


@pytest.mark.parametrize("glyphs", ["unicode", "ascii"])
def test_no_control_sequence_reaches_the_terminal(glyphs: str) -> None:
    @scene
    async def screen() -> None:
        async with reading((40, 60), ASCII) if glyphs == "ascii" else reading((40, 60)) as reader:
            nasty = "".join(map(chr, range(0x100))) + "\u2028\u202e\u2066\ud800\U000e0041" + EVERYTHING
            failed = Message(2, "assistant", nasty, nasty, 1.0, "failed", nasty)
            reader.transcript.show([user(nasty), failed], nasty)
            await reader.settled()
            await reader.press("enter", "ctrl+a")
            for y in range(0, 200, 40):
                await reader.scroll(y)
                for strip in strips_of(reader.app.screen):
                    for segment in strip:
                        assert segment.control is None
                        assert sendable(segment.text)
                        assert segment.style is None or segment.style.link is None

    screen()


@scene
async def test_ascii_mode_uses_only_ascii() -> None:
    async with reading((60, 60), ASCII) as reader:
        text = "# T\n- a\n> q\n\n| a | b |\n|---|---|\n| 1 | \x1b |\n\n```py\n" + "x" * 90 + "\n```"
        reader.transcript.show([user(LINES), reply(text, reasoning="hm")], "a")
        await reader.settled()
        assert all(strip.text.isascii() for strip in strips_of(reader.app.screen))


@scene
async def test_very_large_chats_and_messages_are_shown() -> None:
    async with reading((80, 24)) as reader:
        reader.transcript.show([user(f"message {number}", number) for number in range(10_000)], "a")
        await reader.settled()
        assert "message 9999" in reader.drawn()
        await reader.press("home")
        assert reader.lines()[1] == "message 0"
        reader.transcript.show([reply((EVERYTHING + "\n\n") * 1500), user("last")], "a")
        await reader.settled()
        assert reader.lines()[-2] == "last"
        await reader.press("pageup")
        assert "Under" in reader.drawn()
        reader.transcript.show([reply("x" * 100_000)], "a")
        await reader.settled()
        assert reader.lines()[5] == "x" * 79


@scene
async def test_streaming_into_a_missing_message_is_an_error() -> None:
    async with reading() as reader:
        with pytest.raises(ValueError, match="append"):
            reader.transcript.extend("text")


@scene
async def test_code_is_highlighted_once_the_lexer_is_loaded() -> None:
    async with reading() as reader:
        reader.transcript.show([reply("```python\ndef f(): return 'x'\n```")], "a")
        await reader.settled()
        await reader.app.workers.wait_for_complete()
        await reader.settled()
        (line,) = [strip for strip in strips_of(reader.app.screen) if "def" in strip.text]
        assert len({segment.style for segment in line if segment.text.strip()}) >= 4
