"""The tour says what happened when the user intervenes in a page, or keeps chats that cannot be stored."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.api.events import Admitted, Finished, FirstToken, Forked, Preempted
from engine.api.snapshot import Switch
from minichat.chats import opening
from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend
from minichat.commands.tour import keep
from minichat.features.tour import guide
from minichat.features.tour.pages import PAGES
from minichat.features.tour.panel import TourPanel
from tests.app.conftest import run, snapshot

STOPPED = "Its replies ended too early. Press r to play it again."


async def play(it: Any, title: str) -> None:
    """Turn to the page and play it, without waiting for those before. Return once nothing else runs."""
    await it.until(lambda: it.main.query(TourPanel))
    while title not in text(it):
        await it.pilot.press("enter")
    await it.command("reply.stop_all")
    await it.until(lambda: not it.app.chats.streaming)
    await it.pilot.press("r")


def text(it: Any) -> str:
    return str(it.main.query_one(TourPanel).text.plain)


@run
async def test_a_page_whose_replies_are_stopped_waits_no_longer(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "_LATE", 0.05)
    async with bench((120, 40), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        await it.pilot.press("enter", "enter")
        await it.until(lambda: len(it.replies) == 1)
        await it.pilot.press("escape")
        await it.until(lambda: STOPPED in text(it))
        await it.pilot.press("r")
        await it.until(lambda: len(it.replies) == 2)
        it.backend.emit(Admitted(0, 0.0, 1, 0), FirstToken(0, 0.0, 1, 0.5))
        await it.until(lambda: "Request 1 was admitted" in text(it))


@run
async def test_a_preempted_reply_that_is_stopped_is_not_said_to_resume(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "_LATE", 0.05)
    async with bench((120, 40), tour=True) as it:
        await play(it, PAGES[4].title)
        await it.until(lambda: [chat.run.reply is not None for chat in it.app.chats.streaming] == [True] * 3)
        request = it.app.chats.active.run.reply.id
        it.backend.emit(Preempted(0, 0.0, request, False, 3))
        await it.until(lambda: "gave up its 3 blocks" in text(it))
        await it.command("reply.stop_all")
        await it.until(lambda: STOPPED in text(it))


@run
async def test_a_fork_that_is_stopped_was_not_copied(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), tour=True) as it:
        await play(it, PAGES[3].title)
        await it.until(lambda: len(it.app.chats.streaming) == 1 and it.replies)
        parent = len(it.replies) - 1
        it.backend.emit(FirstToken(0, 0.0, parent, 0.5))
        await it.until(lambda: len(it.app.chats.streaming) == 2)
        child = len(it.replies) - 1
        it.backend.emit(Forked(0, 0.0, child, parent, 2, 0), Finished(0, 0.0, child, "aborted", 3, ""))
        await it.until(lambda: STOPPED in text(it))


@run
async def test_a_prefix_cache_that_is_off_is_not_said_to_have_lost_blocks(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot(switches=(Switch("prefix_cache", False, True),))])
    async with bench((120, 40), backend=backend, tour=True) as it:
        await play(it, PAGES[2].title)
        await it.until(lambda: len(it.app.chats.streaming) == 1)
        it.backend.emit(Admitted(0, 0.0, len(it.replies) - 1, 0))
        await it.until(lambda: "the prefix cache is off" in text(it))


@pytest.fixture
def told(tmp_path: Path) -> Store:
    """The chats of a tour."""
    store = Store(tmp_path / "tour.db")
    store.append(store.create_chat("fox").id, "user", "Tell me a story.")
    return store


def test_chats_that_cannot_be_kept_are_not_said_to_be(
    told: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home.db").mkdir()
    assert keep(told, Store(tmp_path / "home.db")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"minichat: the chats are not kept: Cannot write {tmp_path / 'home.db'}: ")


def test_chats_are_not_kept_while_another_program_writes_for_long(
    told: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "TIMEOUT", 0.05)
    home = Store(tmp_path / "home.db")
    with closing(sqlite3.connect(tmp_path / "home.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert keep(told, home) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("minichat: the chats are not kept: ")


def test_kept_chats_are_counted(told: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keep(told, Store(tmp_path / "home.db")) == 0
    assert capsys.readouterr().out == "minichat: 1 chat kept\n"
    assert [each.title for each in Store(tmp_path / "home.db").open_chats()] == ["fox"]
