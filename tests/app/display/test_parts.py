"""Small parts of the screen, each tested alone."""

import asyncio
import base64
import math
import re
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual._xterm_parser import XTermParser

from engine.api.events import Delta, Event, TokenLogprob
from engine.api.request import Finish
from engine.host.handover import Handover
from minichat.clients.bridge import gathered, in_thread
from minichat.features import BUILT_IN
from minichat.features.table import bound, commands
from minichat.session.pacer import Pacer
from minichat.session.reasoning import ReplyText
from minichat.settings.keymap import normalized
from minichat.shell import clipboard
from minichat.shell.keys import key_name
from minichat.shell.terminal import fix_alt_keys
from minichat.ui.likely import probability_of, visible
from tests.app.conftest import HERE, run


def split_at(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


MARKS = (
    "<|channel|>",
    "analysis",
    "final",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<|",
    "a b",
    "\n",
    "<think>",
)


FINAL = "<|start|>assistant<|channel|>final<|message|>"


@given(
    st.lists(st.text("<think>/ab\n", max_size=9), max_size=12)
    | st.lists(st.sampled_from(MARKS), max_size=12).flatmap(
        lambda parts: st.lists(st.integers(0, 60), max_size=6).map(
            lambda cuts: split_at("<|channel|>" + "".join(parts), cuts)
        )
    )
)
def test_reasoning_does_not_depend_on_how_the_text_is_split(pieces: list[str]) -> None:
    whole, cut = ReplyText(), ReplyText()
    at_once = whole.push("".join(pieces)) + whole.flush()
    from_pieces = "".join(map(cut.push, pieces)) + cut.flush()
    assert (cut.reasoning.strip("\n"), cut.text) == (whole.reasoning.strip("\n"), whole.text)
    assert (at_once, from_pieces) == (whole.text, cut.text)


@pytest.mark.parametrize(
    ("reply", "reasoning", "answer"),
    [
        (f"<|channel|>analysis<|message|>hm<|end|>{FINAL}Yes.", "hm", "Yes."),
        ("<|channel|>final<|message|>Yes.<|return|>", "", "Yes."),
        ("<|channel|>analysis<|message|>I th", "I th", ""),
        (f"<|channel|>commentary<|message|>One.<|end|>{FINAL}Two.", "", "One.\n\nTwo."),
        ("<|chan", "", "<|chan"),
        ("<|channels", "", "<|channels"),
    ],
)  # fmt: skip
def test_the_channels_of_a_reply_are_separated(reply: str, reasoning: str, answer: str) -> None:
    text = ReplyText()
    for letter in reply:
        text.push(letter)
    text.flush()
    assert (text.reasoning, text.text) == (reasoning, answer)


@pytest.mark.parametrize(
    ("raw", "reasoning", "text"),
    [
        ("plain", "", "plain"),
        ("<think>why</think>\n\nso", "why", "so"),
        ("  <think>\nwhy", "why", ""),
        ("a <think>b</think>", "", "a <think>b</think>"),
        ("<thin", "", "<thin"),
    ],
)
def test_reasoning(raw: str, reasoning: str, text: str) -> None:
    parts = ReplyText()
    parts.push(raw)
    parts.flush()
    assert (parts.reasoning, parts.text) == (reasoning, text)


@pytest.mark.parametrize(
    ("raw", "reasoning", "text"),
    [("why</think>\n\nso", "why", "so"), ("\nwhy", "why", ""), ("<|channel|></think>a", "<|channel|>", "a")],
)
def test_reasoning_that_the_template_opens(raw: str, reasoning: str, text: str) -> None:
    parts = ReplyText(opened=True)
    for letter in raw:
        parts.push(letter)
    parts.flush()
    assert (parts.reasoning, parts.text) == (reasoning, text)


class CountingStream:
    """A stream that counts how often its reader has to wait."""

    def __init__(self) -> None:
        self.deltas: asyncio.Queue[Delta] = asyncio.Queue()
        self.waits = 0

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            if self.deltas.empty():
                self.waits += 1
            delta = await self.deltas.get()
            yield delta
            if delta.finish:
                return


@run
async def test_deltas_are_batched_between_pauses() -> None:
    tap, pauses = CountingStream(), 0

    async def pace() -> None:
        nonlocal pauses
        pauses += 1
        for _ in range(3):
            tap.deltas.put_nowait(Delta(0, (pauses,)))
        if pauses == 3:
            tap.deltas.put_nowait(Delta(0, finish=Finish.STOP))

    tap.deltas.put_nowait(Delta(0, (0,)))
    batches = [batch async for batch in gathered(tap, pace)]
    assert [len(batch) for batch in batches] == [1, 3, 3, 4]
    assert batches[-1][-1].finish is Finish.STOP


@run
async def test_a_canceled_reader_stops_reading() -> None:
    reader = asyncio.ensure_future(anext(gathered(CountingStream(), lambda: asyncio.sleep(0))))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


@run
async def test_threads_return_results_and_errors() -> None:
    assert await in_thread(lambda: threading.current_thread().daemon)
    with pytest.raises(ValueError, match="this"):
        await in_thread(lambda: int("this"))


@run
async def test_events_arrive_in_order_and_batched() -> None:
    received: list[list[int]] = []
    hand_over = Handover[Event](lambda events: received.append([event.step for event in events]))
    for step in range(3):
        hand_over(Event(step, 0.0))
    await asyncio.sleep(0)
    hand_over(Event(3, 0.0))
    await asyncio.sleep(0)
    assert received == [[0, 1, 2], [3]]


@run
@pytest.mark.parametrize("tick", [0.0, 0.01])
async def test_events_from_a_thread_are_handled_in_the_context_of_the_screen(tick: float) -> None:
    """A timer that was started in a context without the app failed, and the token count stopped for good."""
    place, seen = ContextVar("place", default="nowhere"), list[str]()
    place.set("screen")
    hand_over = Handover[Event](lambda _: seen.append(place.get()), tick)
    for count in (1, 2):
        threading.Thread(target=hand_over, args=(Event(0, 0.0),), daemon=True).start()
        async with asyncio.timeout(5):
            while len(seen) < count:
                await asyncio.sleep(0.001)
    assert seen == ["screen"] * 2


@run
async def test_expensive_turns_are_spaced_out_but_none_is_late() -> None:
    cpu = 0.0
    pacer = Pacer(1000, lambda: cpu)
    assert pacer.delay() < 0.01
    cpu += 0.012
    assert pacer.delay() < 0.05 < 0.2 < pacer.delay()
    for _chat in range(20):
        cpu += 0.012
        pacer.delay()
    assert 0.4 < pacer.delay() <= 0.5


@run
async def test_the_clipboard_uses_an_escape_sequence_and_a_file(tmp_path: Path) -> None:
    written: list[str] = []
    notice = await clipboard.send("grüße", tmp_path / "kept.txt", written.append, HERE)
    assert "Sent to the clipboard" in notice
    assert written == [f"\x1b]52;c;{base64.b64encode('grüße'.encode()).decode()}\a"]
    assert (tmp_path / "kept.txt").stat().st_mode & 0o777 == 0o600
    notice = await clipboard.send("x" * 80_000, tmp_path / "kept.txt", written.append, HERE)
    assert "Too long" in notice
    assert len(written) == 1
    assert len((tmp_path / "kept.txt").read_text()) == 80_000


@run
async def test_in_gnu_screen_the_clipboard_text_is_sent_in_chunks(tmp_path: Path) -> None:
    written: list[str] = []
    await clipboard.send("grüße" * 99, tmp_path / "kept.txt", written.append, replace(HERE, screen=True))
    pieces = re.findall(r"\x1bP([^\x1b]?.*?)\x1b\\", written[0], re.DOTALL)
    assert "".join(f"\x1bP{piece}\x1b\\" for piece in pieces) == written[0]
    assert max(map(len, pieces)) < 768
    assert "".join(pieces) == f"\x1b]52;c;{base64.b64encode(('grüße' * 99).encode()).decode()}\a"


def test_alt_keys_are_parsed_under_their_names() -> None:
    fix_alt_keys()

    def keys(sequence: str) -> list[str]:
        return [event.key for event in XTermParser().feed(sequence)]  # type: ignore[union-attr]

    assert keys("\x1b1") == ["alt+1"]
    assert keys("\x1bw") == ["alt+w"]
    assert keys("\x1b\r") == ["alt+enter"]
    assert keys("\x1b/") == [normalized("alt+/")]
    assert keys("\x1b-") == [normalized("alt+-")]
    assert keys("\x1bf") == ["ctrl+right"]
    assert keys("¡") == ["inverted_exclamation_mark"]


def test_no_two_commands_share_a_key_and_none_has_an_ambiguous_key() -> None:
    keys = [key for command in commands(BUILT_IN) for key in command.keys.split(",") if key]
    assert len(keys) == len(set(keys))
    assert not {"ctrl+i", "ctrl+m", "ctrl+h", "ctrl+left_square_bracket"}.intersection(keys)
    ids = [each.id for each in bound(BUILT_IN)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("ctrl+n,x", "^N"),
        ("alt+1", "Alt+1"),
        ("f1", "F1"),
        ("escape", "Esc"),
        ("ctrl+pagedown", "^PgDn"),
        ("a", "a"),
        ("slash", "/"),
        ("minus", "-"),
        ("question_mark", "?"),
        ("alt+semicolon", "Alt+;"),
        ("ctrl+backslash", "^\\"),
        ("alt+shift+left_curly_bracket", "Alt+Shift+{"),
        ("delete", "Delete"),
        ("tab", "Tab"),
        ("space", "Space"),
    ],
)
def test_keys_have_readable_names(key: str, name: str) -> None:
    assert key_name(key) == name


def test_tokens_are_made_visible_and_control_characters_are_not_sent() -> None:
    assert visible(" a\n\x1b[2J") == "·a\\n�[2J" + " " * 6
    assert len(visible("x" * 99)) == 14


@pytest.mark.parametrize(
    ("share", "rank", "shown"),
    [(0.25, 1, "25.0%"), (0.0001, 9, "0.0%"), (0.02, 0, "under 2.0%"), (0.0001, 0, "under 0.1%")],
)
def test_no_probability_is_under_zero(share: float, rank: int, shown: str) -> None:
    assert probability_of(TokenLogprob(7, math.log(share), rank, ())) == shown
