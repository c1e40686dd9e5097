"""The tour: the real engine does what each page describes, and nothing is left behind."""

import signal
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.events import (
    Admitted,
    Copied,
    Event,
    FirstToken,
    Forked,
    Preempted,
    Quantized,
    Resumed,
    Updated,
)
from engine.api.params import SamplingParams
from minichat.chats.store import Store
from minichat.clients.local import LocalBackend
from minichat.commands.tour import keep_chats, say_kept, start_of
from minichat.features.tour.feature import KEEP, KEPT, Tour
from minichat.features.tour.pages import BLOCKS, LONG, PAGES, SCHEME
from minichat.features.tour.panel import TourPanel
from minichat.settings import Settings, load
from minichat.shell.paths import locate
from minichat.shell.terminal import Terminal
from tests.app.configured import configured
from tests.app.conftest import run
from tests.cases import soak


def outcome(it: Any) -> str:
    """The panel's line below the page's own text; empty while it waits for the engine."""
    lines = it.main.query_one(TourPanel).text.plain.splitlines()
    return lines[2] if len(lines) == 3 and "waiting for the engine" not in lines[2] else ""


def played(it: Any) -> bool:
    """Whether the page has played to its end."""
    return bool(outcome(it)) and not outcome(it).endswith("...") and not outcome(it).startswith("Look at")


@run
async def test_the_pages_name_keys_as_they_are_bound(bench: Callable[..., Any], tmp_path: Path) -> None:
    configured(tmp_path, '[keys]\n"engine.switches" = "f9"\n"view.why" = "f11"\n')
    async with bench((120, 40), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        tour = it.app.context.part(Tour)
        tour._begun.update(range(len(PAGES)))  # none waits to be played
        for _ in PAGES:
            tour.turn_page(1)
        assert "F11 explains the current speed, and F9 turns" in it.screen_text()


@run
async def test_the_whole_tour_with_the_real_engine(bench: Callable[..., Any], tmp_path: Path) -> None:
    backend, received = (
        LocalBackend(EngineConfig(model="pocket", device="cpu", blocks=BLOCKS, seed=1)),
        list[Event](),
    )
    async with bench((80, 24), backend=backend, tour=True, params=SamplingParams()) as it:
        await patiently(it, lambda: it.main.query(TourPanel))
        await it.until(lambda: "A tour of the engine" in it.screen_text())
        backend.subscribe(received.extend)
        seen = []
        preempted = []  # requests, of each page
        for page in PAGES[1:-1]:
            before = len(received)
            await it.pilot.press("enter")
            assert page.title in it.screen_text()
            assert "Look at" in it.screen_text()
            assert "Enter play" in it.screen_text()
            await it.pilot.press("enter")
            await patiently(it, lambda: played(it))
            assert page.title in it.screen_text()
            assert "KV [" in it.screen_text(), "the engine line stays visible"
            seen.append(outcome(it))
            preempted.append({each.request for each in received[before:] if isinstance(each, Preempted)})
        kinds = {type(event) for event in received}
        assert kinds >= {Admitted, FirstToken, Forked, Preempted, Resumed, Updated}
        cached = [event.cached for event in received if isinstance(event, Admitted)]
        assert cached[0] == 0
        assert f"{cached[1]} of its" in seen[1]
        assert cached[1] >= 64
        copies = [
            f"recomputed none of them. When one of the two continued, the half-full block {event.block} was "
            f"copied to {event.to};"
            for event in received
            if isinstance(event, Copied)
        ]
        at_an_end = "all of them full: nothing had to be copied"  # as many tokens as fill blocks, by chance
        assert (copies or [at_an_end])[0] in seen[2] and "  " not in seen[2]
        assert "resumed automatically" in seen[3]
        assert "the same as without the preemption (on a GPU except at near ties)." in seen[3]
        assert len(preempted[3]) == 2
        assert "two of the three are preempted" in PAGES[4].watch
        assert "greedy" in seen[4]
        switched = next(event for event in received if isinstance(event, Quantized))
        assert (switched.scheme, switched.error) == (SCHEME, "")
        assert "while the request waited" in seen[5], "no token is computed with half of the layers changed"
        await it.pilot.press("enter")
        assert {each.chat.params.min_tokens for each in it.app.chats} == {0}, "chat as you like"
        await it.pilot.press("shift+tab", "k")
        await it.until(lambda: it.app.return_code == KEEP)
        assert len(it.app.chats) == 3
        home = Store(tmp_path / "home.db")
        assert keep_chats(it.app.store, home) == 3
    assert len(Store(tmp_path / "home.db").open_chats()) == 3
    backend.close()


async def patiently(it: Any, holds: Callable[[], object]) -> None:
    """Wait longer than `until`, for a real model on a loaded machine."""
    for _ in range(30):
        try:
            return await it.until(holds)
        except AssertionError:
            continue
    raise AssertionError("it never came")


def test_its_chats_are_sampled_as_new_ones_are(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[sampling]\nbeams = 4\n[screen]\nascii = true")
    start = start_of(locate(), Terminal(ssh=False, tmux=False, unicode=True), load(file), ascii=False)
    assert (start.params, start.ascii) == (Settings().sampling, True)


@run
async def test_kept_chats_have_no_lengths_of_the_tour(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        chat, tour = it.app.chats.active, Tour(it.app.context)
        usual = chat.chat.params
        chat.tune(usual.changed(**LONG))
        tour.leave(keep=True)
        assert chat.chat.params == usual


@pytest.mark.soak
@run
async def test_forward_back_and_quit(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        await it.pilot.press("enter")
        assert "Look at the line above" in it.screen_text()
        assert it.replies == [], "it waits for Enter"
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 1)
        assert it.replies[0].prompt[0]["role"] == "system"
        assert "waiting for the engine" in it.screen_text()
        it.backend.emit(Admitted(0, 0.0, 0, 0), FirstToken(0, 0.0, 0, 0.25))
        await it.until(lambda: "came 250 ms after" in it.screen_text())
        await it.pilot.press("backspace")
        assert "24 blocks" in it.screen_text()
        await it.pilot.press("right")
        assert "came 250 ms after" in it.screen_text(), "a page is not played twice"
        assert len(it.replies) == 1
        await it.pilot.press("enter")
        assert not it.replies[0].finished
        await it.pilot.press("enter")
        await it.until(lambda: it.replies[0].finished), "what ran before is ended"
        await it.until(lambda: len(it.replies) == 2)
        await it.pilot.press("q")
        await it.until(lambda: it.app.return_code == 0)


@run
async def test_it_says_where_the_engine_is_shown_now_and_who_has_the_keys(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        await it.pilot.press("enter")
        shows = lambda words: words in " ".join(it.screen_text().split())  # noqa: E731
        assert shows(
            "Look at the monitor: the request waits, prefills its prompt, decodes, and fills blocks."
        )
        assert shows("Enter play b back")
        await it.pilot.press("f3")  # the drawer takes the place of the monitor
        await it.until(
            lambda: shows("Look at the line above: the request waits (W), prefills its prompt (P)")
        )
        await it.pilot.press("escape")  # the prompt has the keys
        await it.until(lambda: shows("Look at the monitor") and shows("Shift+Tab for Enter play b back"))
        await it.pilot.press("shift+tab")
        await it.until(lambda: not shows("Shift+Tab"))
        await it.pilot.press("b")
        await it.until(lambda: shows("A tour of the engine"))
        await it.pilot.press("enter")
        await it.pilot.resize_terminal(80, 24)
        await it.until(lambda: shows("Look at the line above"))


@run
async def test_from_the_monitor_its_keys_are_reached_through_the_prompt(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        await it.pilot.press("alt+m")
        await it.until(lambda: "Esc, Shift+Tab for  Enter next" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: " Shift+Tab for  Enter next" in it.screen_text().replace("Esc, Shift", ""))
        await it.pilot.press("shift+tab")
        await it.until(lambda: it.main.query_one(TourPanel).has_focus)


@run
async def test_escape_does_what_the_bottom_line_says_and_keeps_the_tour(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        await it.pilot.press("enter", "enter")
        await it.until(lambda: len(it.replies) == 1 and "Esc stop" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: it.replies[0].finished)
        await it.pilot.press("f2", "shift+tab")
        await it.until(lambda: "Esc chat" in it.screen_text())
        assert it.main.query_one(TourPanel).has_focus
        await it.pilot.press("escape")
        await it.until(lambda: "1 KV map" not in it.screen_text())
        assert it.app.return_code is None
        assert "A reply  2/8" in it.screen_text()


@run
async def test_a_page_can_be_played_again(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        await it.pilot.press("r", "enter")  # the first page has nothing to play
        assert "Look at the monitor" in " ".join(it.screen_text().split())
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 1)
        it.backend.emit(Admitted(0, 0.0, 0, 0), FirstToken(0, 0.0, 0, 0.25))
        await it.until(lambda: outcome(it).startswith("Request 0"))
        assert "r again" in it.screen_text()
        await it.pilot.press("r")
        await it.until(lambda: len(it.replies) == 2)
        assert it.replies[0].finished
        assert outcome(it) == ""
        assert "edit" not in str(it.main.prompt.border_title), "the page sends, the user edits nothing"
        first, second = (reply.prompt[-1]["content"] for reply in it.replies)
        assert first != second, "only the system prompt was read before"
        it.backend.emit(Admitted(0, 0.0, 1, 0), FirstToken(0, 0.0, 1, 0.5))
        await it.until(lambda: outcome(it).startswith("Request 1"))
        await it.pilot.press("enter", "b", "r")
        await it.until(lambda: len(it.replies) == 3), "a page before, too"


@run
@pytest.mark.parametrize("size", [(40, 12), *soak(((80, 16),), ((80, 24),), ((200, 60),))])
async def test_all_of_a_page_can_be_read(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size, tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        panel = it.main.query_one(TourPanel)
        assert panel.size.height <= size[1] // 2
        seen = set(panel.render().plain.splitlines())
        assert any("q quit" in line for line in seen)
        for _ in range(20):
            await it.pilot.press("down")
            seen |= set(panel.render().plain.splitlines())
        assert {line.plain for line in panel.text.wrap(panel.size.width)} <= seen
        assert "more" not in it.screen_text()


@run
async def test_it_does_not_wait_if_the_user_continues(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        for _ in range(2 * len(PAGES)):
            await it.pilot.press("enter")
        await it.until(lambda: "End of the tour" in it.screen_text())
        assert "keep chats" in it.screen_text()


@run
async def test_each_page_shows_the_key_that_keeps_the_chats(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        await it.until(lambda: "Enter next  q quit  k keep chats, quit" in it.screen_text())
        await it.pilot.press("k")
        await it.until(lambda: it.app.return_code == KEEP)


@run
async def test_the_palette_says_that_it_needs_the_terminal(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.command("program.tour")
        await it.until(lambda: any("run: minichat tour" in notice for notice in it.notices()))


@run
async def test_the_screen_says_that_the_tour_starts_and_what_it_left(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        terminal = StringIO()
        there = Store(it.app.paths.chats)  # the one of the tour
        monkeypatch.setattr(it.app, "suspend", lambda: redirect_stdout(terminal))
        seen, keeps = list[str](), True

        def tour(*_: object, env: dict[str, str], **__: object) -> SimpleNamespace:
            seen.append(terminal.getvalue())
            if keeps:
                monkeypatch.setenv(KEPT, env[KEPT])
                say_kept(2)
            there.append(there.create_chat("kept").id, "user", "hello")
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(subprocess, "run", tour)
        await it.command("program.tour")
        await it.until(lambda: "Kept 2 chats. ^O lists them" in it.notices())
        await it.until(lambda: "kept" in it.screen_text())  # without another key
        assert seen == ["minichat: starting the tour ...\n"]

        keeps, before = False, len(it.notices())
        await it.command("program.tour")
        assert len(seen) == 2
        assert len(it.notices()) == before, "nothing was kept"

        monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
        await it.command("program.tour")
        await it.until(lambda: "The tour failed with exit code 1" in it.notices())


@run
@pytest.mark.parametrize("code", [130, -signal.SIGINT])
async def test_ctrl_c_while_the_tour_starts_returns_to_the_screen(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The terminal sends it to both programs, as neither has the screen yet."""

    def tour(*_: object, **__: object) -> SimpleNamespace:
        signal.raise_signal(signal.SIGINT)
        return SimpleNamespace(returncode=code)

    async with bench() as it:
        monkeypatch.setattr(it.app, "suspend", lambda: redirect_stdout(StringIO()))
        monkeypatch.setattr(subprocess, "run", tour)
        before = signal.getsignal(signal.SIGINT)
        await it.command("program.tour")
        assert not (await it.say("hello")).finished
        assert it.notices() == []
        assert signal.getsignal(signal.SIGINT) == before


@run
async def test_its_keys_can_be_clicked(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        panel = it.main.query_one(TourPanel)

        async def click(word: str) -> None:
            line = panel.render().plain.splitlines()[-1]
            edges = panel.content_region.offset - panel.region.offset
            await it.pilot.click(panel, offset=(edges.x + line.index(word), panel.size.height - 1 + edges.y))
            await it.pilot.pause()

        for word, page in (("next", "2/8"), ("back", "1/8"), ("Enter", "2/8")):
            await it.until(lambda word=word: word in it.screen_text())
            await click(word)
            await it.until(lambda page=page: page in it.screen_text())
        await click("quit")
        await it.until(lambda: it.app.return_code is not None)
