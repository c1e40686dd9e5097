"""The chats of the tour: what a user writes in them stays."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend
from minichat.commands import tour as tour_command
from minichat.features.leaving import RESTART
from minichat.features.tour.pages import PAGES
from minichat.features.tour.panel import TourPanel
from minichat.shell.paths import locate
from tests.app.conftest import run


def test_a_restart_keeps_the_tour_and_its_chats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backends, seen, codes = list[FakeBackend](), list[list[str]](), [RESTART, RESTART, 0]

    class Loading(FakeBackend):
        closes = 0

        def close(self) -> bool:
            self.closes += 1
            return self.closes > 2

    class App:
        def __init__(self, backend: FakeBackend, store: Store, start: Any) -> None:
            self.store, self.return_code = store, codes.pop(0)
            assert start.tour and start.paths.chats.parent == tmp_path
            backends.append(backend)

        def run(self, **_: Any) -> None:
            seen.append([each.title for each in self.store.open_chats()])
            self.store.create_chat(f"chat {len(seen)}")

    monkeypatch.setattr("minichat.app.MinichatApp", App)
    monkeypatch.setattr("minichat.clients.local.LocalBackend", lambda config: Loading([]))
    monkeypatch.setattr(tour_command, "_LOOK_EVERY", 0)
    monkeypatch.setattr(tour_command, "take_terminal", lambda log: None)
    monkeypatch.setattr(tour_command, "start_of", lambda own, *_, **__: SimpleNamespace(tour=True, paths=own))
    options = SimpleNamespace(ascii=False)
    assert tour_command._show(options, locate(), tmp_path) == (0, False)  # type: ignore[arg-type]
    assert seen == [[], ["chat 1"], ["chat 1", "chat 2"]] and len({*map(id, backends)}) == 3


async def write_own(it: Any) -> None:
    """Play the first page, then send a message in its chat."""
    await it.until(lambda: it.main.query(TourPanel))
    await it.pilot.press("enter", "enter")
    await it.until(lambda: len(it.replies) == 1)
    await it.answered(it.replies[0])
    await it.pilot.press("escape", *"own", "enter")
    await it.until(lambda: len(it.replies) == 2)
    await it.answered(it.replies[1])


@run
async def test_a_page_leaves_the_chat_in_which_the_user_has_written(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), tour=True) as it:
        await write_own(it)
        mine = it.app.chats.active
        it.main.query_one(TourPanel).focus()
        await it.pilot.press("r")
        await it.until(lambda: len(it.replies) == 3)
        assert [each.text for each in mine.chat.messages if each.role == "user"][1:] == ["own"]
        assert it.app.chats.active is not mine
        await it.pilot.press("r")  # the page's own chat is used again
        await it.until(lambda: len(it.replies) == 4)
        assert len(it.app.chats) == 2


@run
async def test_the_last_page_leaves_letters_to_the_prompt(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        panel = it.main.query_one(TourPanel)
        for _ in PAGES[1:]:
            panel.action_play()  # pages are not waited for
            panel.action_turn_page(1)
        await it.until(lambda: "8/8" in it.screen_text())
        await it.pilot.press(*"quick question")
        assert it.app.return_code is None and it.main.prompt.text == "quick question"
        assert "Shift+Tab for" in it.screen_text()


@pytest.mark.parametrize("key", ["q", "ctrl+q"])
@run
async def test_quitting_asks_if_the_user_has_written(bench: Callable[..., Any], key: str) -> None:
    async with bench((120, 40), tour=True) as it:
        await write_own(it)
        it.main.query_one(TourPanel).focus()
        await it.pilot.press(key)
        await it.until(lambda: any("are not kept" in each for each in it.notices()))
        assert it.app.return_code is None
        await it.pilot.press(key)
        await it.until(lambda: it.app.return_code == 0)
