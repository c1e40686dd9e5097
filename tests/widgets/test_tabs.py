"""The tab bar: what it omits if there is no room for everything."""

from dataclasses import replace

import pytest

from minichat.ui.panes.tabs import ChatTabs, Tab
from tests.app.conftest import run
from tests.widgets.monitor.stage import received, staged

FACTS = "pocket  bfloat16  cpu"


def tabs(count: int) -> tuple[Tab, ...]:
    letters = "ABCDEFGHIJKLMNOP"
    return tuple(
        Tab(
            f" {letters[place]} ",
            "Count from one to thirty",
            "#000000 on #56B4E9",
            active=place == 2,
            unread=True,
        )
        for place in range(count)
    )


@run
@pytest.mark.parametrize(("width", "count"), [(120, 7), (120, 12), (200, 9), (200, 16)])
async def test_model_scheme_and_device_are_kept(width: int, count: int) -> None:
    line = ChatTabs()
    async with staged(line, (width, 1)):  # type: ignore[arg-type]
        line.facts, line.tabs = FACTS, tabs(count)
        text = line.render().plain
        assert text.rstrip().endswith(FACTS)
        assert len(text) <= width
        assert " C  Count" in text, "the active chat's title is shown"
        if count == 7:
            assert all(f" {letter} " in text for letter in "ABCDEFG")


@run
@pytest.mark.parametrize(
    ("count", "kept"), [(3, FACTS), (4, FACTS), (5, "pocket"), (6, FACTS), (7, "pocket"), (12, "pocket")]
)
async def test_on_a_small_terminal_titles_give_way_first(count: int, kept: str) -> None:
    line = ChatTabs()
    async with staged(line, (80, 1)):  # type: ignore[arg-type]
        line.facts = FACTS
        line.tabs = tuple(replace(each, unread=each.unread and at < 2) for at, each in enumerate(tabs(count)))
        text = line.render().plain
        assert text.endswith(f" {kept} ") and len(text) == 80
        assert " C  Coun" in text, "the active chat's title is shown"
        assert count == 12 or all(f" {letter} " in text for letter in "ABCDEFG"[:count])


@run
async def test_on_a_very_small_terminal_the_model_gives_way_to_more_chats() -> None:
    line = ChatTabs()
    async with staged(line, (40, 1)):  # type: ignore[arg-type]
        line.facts, line.tabs = "tiny", tabs(12)
        assert "tiny" not in line.render().plain
        line.tabs = tabs(1)
        assert "tiny" in line.render().plain


@run
async def test_on_a_small_terminal_all_chats_are_shown() -> None:
    line = ChatTabs()
    async with staged(line, (80, 1)):  # type: ignore[arg-type]
        line.facts, line.tabs = FACTS, tabs(5)
        text = line.render().plain
        assert all(f" {letter} " in text for letter in "ABCDE") and len(text) <= 80


@run
async def test_titles_use_the_room() -> None:
    """A mark that comes and goes with a reply hardly moves them."""
    line = ChatTabs()
    async with staged(line, (120, 1)):  # type: ignore[arg-type]
        line.facts = FACTS
        for running in (False, True):
            some = tabs(4)
            line.tabs = tuple(replace(each, unread=False, running=running and each.active) for each in some)
            drawn = line.render().plain.removesuffix(f" {FACTS} ")
            assert len(drawn) - len(drawn.rstrip()) <= len(some) + 1
            assert drawn.count(" Count from one") == len(some)


@run
async def test_the_active_title_takes_the_room_that_letters_leave() -> None:
    line, title = ChatTabs(), "A long title of the chat on the screen"
    async with staged(line, (190, 1)):  # type: ignore[arg-type]
        line.facts = FACTS
        some = [replace(each, title=title, unread=False, active=False) for each in tabs(16)]
        line.tabs = (*some, replace(some[0], active=True))
        drawn = line.render().plain
        assert title in drawn and drawn.count(title[:3]) == 1


@run
async def test_titles_that_begin_alike_show_their_ends() -> None:
    line, title = ChatTabs(), "Turn into French: the cat sleeps"
    async with staged(line, (80, 1)):  # type: ignore[arg-type]
        line.facts = FACTS
        titles = (title, f"{title} (fork)", f"{title} (fork 2)")
        line.tabs = tuple(
            replace(each, title=title, unread=False) for each, title in zip(tabs(3), titles, strict=True)
        )
        text = line.render().plain
        assert "A  Turn " in text and "fork) " in text and "fork 2) " in text


@run
async def test_narrow_tabs_of_forks_read_as_forks() -> None:
    line, title = ChatTabs(), "Turn into French: the cat sleeps"
    titles = (title, f"{title} (fork)", *(f"{title} (fork {number})" for number in range(2, 13)))
    async with staged(line, (80, 1)):  # type: ignore[arg-type]
        for longest, names in (
            (5, ("Turn…", "fork", "fork2", "fork9", "… 12)")),
            (6, ("Turn …", "(fork)", "fork 2", "fork 9", "fork12")),
            (8, ("Turn in…", "T…(fork)", "(fork 2)", "(fork 9)", "fork 12")),
            (10, ("Turn into…", "Tur…(fork)", "T…(fork 2)", "T…(fork 9)", "(fork 12)")),
        ):
            line.tabs = tuple(
                replace(each, title=title) for each, title in zip(tabs(13), titles, strict=True)
            )
            assert [line._cut(at, titles[at], longest) for at in (0, 1, 2, 9, 12)] == list(names)


@run
async def test_a_click_on_the_sign_of_chats_that_are_left_out_goes_to_the_next_of_them() -> None:
    line = ChatTabs()
    async with staged(line, (80, 1)) as pilot:  # type: ignore[arg-type]
        line.facts = FACTS
        line.tabs = tuple(replace(each, active=at == 8) for at, each in enumerate(tabs(16)))
        await pilot.pause()
        text = line.render().plain
        seen = [at for at, letter in enumerate("ABCDEFGHIJKLMNOP") if f" {letter} " in text]
        for sign in "‹›":
            await pilot.click(ChatTabs, offset=(text.index(sign), 0))
        assert [each.index for each in received(pilot, ChatTabs.TabActivated)] == [seen[0] - 1, seen[-1] + 1]
