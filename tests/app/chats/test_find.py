"""The find bar."""

from collections.abc import Callable
from typing import Any

import pytest

from minichat.ui.transcript import Transcript
from tests.app.conftest import run
from tests.cases import soak


def find_bar(it: Any) -> str:
    """The bar's text without trailing blanks."""
    return next(
        find_bar.rstrip() for find_bar in it.screen_text().splitlines() if find_bar.startswith(" find ")
    )


KEYS = "Enter next  Up back  Esc done"


@run
@pytest.mark.parametrize("size", [(80, 24), (40, 10), *soak(((80, 16),))])  # short terminals have no key bar
async def test_it_shows_its_label_and_keys(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size) as it:
        await it.answered(await it.say("hello"), "needle " + "hay\n\n" * 60 + "needle")
        high = it.main.keybar.display
        assert KEYS not in it.screen_text()
        await it.pilot.press("ctrl+f")
        await it.until(lambda: f" find {KEYS}" in it.screen_text())
        assert it.screen_text().count(KEYS) == 1 + high
        await it.pilot.press(*"needle")
        await it.until(lambda: " find needle" in it.screen_text() and " of 2" in it.screen_text())
        assert it.screen_text().count(KEYS) == high
        at = it.main.transcript.find_count[0]
        await it.pilot.press("up")
        await it.until(lambda: it.main.transcript.find_count[0] != at)
        await it.pilot.press("down")
        await it.until(lambda: it.main.transcript.find_count[0] == at)
        await it.pilot.press("x")
        await it.until(lambda: find_bar(it).endswith("not found"))
        await it.pilot.press("escape")
        await it.until(lambda: it.app.focused is it.main.prompt and KEYS not in it.screen_text())


@run
async def test_tab_goes_to_the_messages_whose_keys_go_from_match_to_match(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:  # with the monitor beside the chat
        await it.answered(await it.say("hello"), "needle needle")
        await it.pilot.press("ctrl+f", *"needle", "tab")
        assert it.app.focused is it.main.transcript
        for key, place in (("n", "2 of 2"), ("N", "1 of 2")):
            await it.pilot.press(key)
            await it.until(lambda place=place: f"{place} " in it.screen_text())


@run
async def test_matches_are_counted_in_the_version_that_is_shown(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "needle needle needle")
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        await it.answered(it.replies[-1], "needle")
        await it.pilot.press("ctrl+f", *"needle")
        await it.until(lambda: find_bar(it).endswith("1 of 1"))
        await it.command("reply.earlier")
        await it.until(lambda: find_bar(it).endswith("3 matches"))


@run
@pytest.mark.parametrize("opener", ["f3", *soak("f2", "f4")])
async def test_it_replaces_what_covers_the_chat(bench: Callable[..., Any], opener: str) -> None:
    """On a small screen a drawer would otherwise cover the chat that is searched."""
    async with bench((70, 20)) as it:
        await it.answered(await it.say("hello"), "a needle")
        await it.pilot.press(opener)
        await it.until(lambda: not it.main.query_one("#panes").display)
        await it.pilot.press("ctrl+f", *"needle")
        await it.until(lambda: " find needle" in it.screen_text() and "a needle" in it.screen_text())


@run
@pytest.mark.parametrize(("size", "covers"), [((80, 24), ["f2"]), *soak(((120, 40), ["alt+m", "1"]))])
async def test_esc_closes_what_is_seen_before_it(
    bench: Callable[..., Any], size: tuple[int, int], covers: list[str]
) -> None:
    """The monitor hides the chat, and the bar with it."""
    async with bench(size) as it:
        await it.answered(await it.say("hello"), "a needle")
        await it.pilot.press("ctrl+f", *"needle", *covers)
        await it.until(lambda: not it.main.query_one("#panes").display)
        await it.pilot.press("escape")
        await it.until(lambda: " find needle" in it.screen_text() and "1 of 1" in it.screen_text())
        it.main.prompt.focus()  # beside the chat, the monitor still has the focus
        await it.pilot.press("escape")
        await it.until(lambda: " find needle" not in it.screen_text())


@run
@pytest.mark.parametrize("state", ["active", "open", "closed"])
async def test_a_message_found_in_all_chats_is_shown_where_it_matches(
    bench: Callable[..., Any], state: str
) -> None:
    async with bench() as it:
        store = it.app.store
        chat = store.create_chat("long")
        for number in range(80):
            what = "a needle" if number in (7, 60) else "nothing"
            store.append(chat.id, "user", f"Here is {what}: {number}" + "\n\nhay" * 20)
        store.close_chat(chat.id)
        if state != "closed":
            it.main.follow_chat(it.app.chats.reopen(chat.id))
        if state == "open":
            await it.pilot.press("alt+1")
        await it.pilot.press("ctrl+o", *"needle")
        await it.until(lambda: "a needle: 7 " in it.screen_text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: "Here is a needle: 7" in it.screen_text() and find_bar(it).endswith("1 of 2"))
        await it.pilot.press("escape")
        await it.until(lambda: it.app.focused is it.main.prompt)
        assert "Here is a needle: 7" in it.screen_text()


@run
async def test_a_match_in_a_hidden_chat_that_had_another_size_is_shown(bench: Callable[..., Any]) -> None:
    async with bench((200, 60)) as it:
        chat = it.app.store.create_chat("long")
        for number in range(8):
            what = "a needle" if number == 4 else "nothing"
            it.app.store.append(chat.id, "user", f"Here is {what}: {number}" + "\n\nhay" * 2)
        it.app.store.close_chat(chat.id)
        it.main.follow_chat(it.app.chats.reopen(chat.id))
        await it.until(lambda: "Here is a needle: 4" in it.screen_text())
        await it.pilot.press("alt+1")
        await it.pilot.resize_terminal(80, 24)
        await it.until(lambda: "Here is a needle: 4" not in it.screen_text())
        await it.pilot.press("ctrl+o", *"needle")
        await it.until(lambda: "a needle: 4" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: find_bar(it).endswith("1 of 1"))
        await it.until(lambda: "Here is a needle: 4" in it.screen_text())


@run
async def test_separate_words_found_in_all_chats_are_marked_by_the_first(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        for text in ("Some hay", "Hay and a Needle", "hay", "more hay"):
            await it.answered(await it.say(text), "hay" + "\n\nhay" * 20)
        await it.pilot.press("ctrl+o", *"needle hay")
        await it.until(lambda: "Hay and a Needle" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: " find hay " in it.screen_text() and "Hay and a Needle" in it.screen_text())


@run
async def test_it_counts_hits_and_updates_while_open(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("".join(f"needle {number}\n\n" for number in range(7)))
        await it.until(lambda: "needle 6" in it.main.transcript.last_reply())
        await it.pilot.press("ctrl+f", *"needle")
        await it.until(lambda: find_bar(it).endswith(" of 7"))
        first = int(find_bar(it).split()[-3])
        await it.pilot.press("enter")
        await it.until(lambda: find_bar(it).endswith(f" {first % 7 + 1} of 7"))
        await it.pilot.press("up", "up")
        await it.until(lambda: find_bar(it).endswith(f" {(first - 2) % 7 + 1} of 7"))
        await it.answered(reply, "\n\nneedle 7\n\n")
        await it.until(lambda: find_bar(it).endswith(" of 8"))


@run
async def test_keys_that_arrive_while_the_pane_of_a_new_chat_is_created(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        for id in ("reply.stop", "reply.pick", "chat.find"):
            it.main.new_chat()  # its pane has no bars yet
            await it.command(id)
        await it.until(lambda: find_bar(it) == f" find {KEYS}")
        assert it.failures == []


@run
@pytest.mark.parametrize("keys", [["ctrl+f", *"secret"], ["ctrl+o", *"secret thought", "enter"]])
async def test_a_match_in_reasoning_is_shown(bench: Callable[..., Any], keys: list[str]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "<think>A Secret thought.</think>Four.")
        assert it.app.chats.active.chat.messages[-1].reasoning == "A Secret thought."
        assert "A Secret" not in it.screen_text()
        await it.pilot.press(*keys)
        await it.until(lambda: "1 of 1" in it.screen_text() and "A Secret thought." in it.screen_text())
        await it.pilot.press("x")
        await it.until(lambda: find_bar(it).endswith("not found"))


@run
async def test_a_match_whose_number_is_not_known_has_none(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "hello")
        counted = (0, 28_200, False)  # counting all would take too long
        monkeypatch.setattr(Transcript, "find_count", property(lambda _: counted))
        await it.pilot.press("ctrl+f", *"hello")
        await it.until(lambda: find_bar(it).endswith("  28,200+ matches"))
        counted = (0, 1, True)
        await it.pilot.press("x")
        await it.until(lambda: find_bar(it).endswith("  1 match"))
