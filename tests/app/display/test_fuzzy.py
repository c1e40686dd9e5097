"""Fuzzy search in the palette."""

from itertools import combinations, pairwise
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minichat.features import BUILT_IN
from minichat.features.palette import PaletteEntry
from minichat.features.table import commands
from minichat.ui.dialogs.fuzzy import match


@pytest.mark.parametrize(
    ("query", "text", "places"),
    [
        ("rn", "Rename this chat", (0, 2)),
        ("chat", "Close the chat", (10, 11, 12, 13)),
        ("tc", "Rename this chat", (7, 12)),  # at the starts of words
        ("QUIT", "Quit", (0, 1, 2, 3)),
        ("", "Quit", ()),
        ("quits", "Quit", ()),
        ("tiq", "Quit", ()),
        ("i", "\u0130i", (1,)),  # its lower case has two letters
    ],
)
def test_positions(query: str, text: str, places: tuple[int, ...]) -> None:
    score, found = match(query, text)
    assert found == places
    assert (score > 0) is bool(places)


def test_a_long_text_does_not_take_long() -> None:
    """It took forever: the number of ways to match grows exponentially."""
    title = f"Go to A: Tell me a story about a brave mouse. {'A very long title of words ' * 12}"
    for query in ("tell me words", "a long of", "very long of words very"):
        score, places = match(query, title)
        assert score > 0 and len(places) == len(query)
    assert match("x" * 100_000, title) == (0, ())
    assert match("a" * 90, "a" * 5000)[1] == tuple(range(90))


def test_a_word_is_better_than_its_parts() -> None:
    parts, whole = "Edit the last message and send it again", "Choose a theme"
    assert match("theme", parts)[0] < match("theme", whole)[0]


@given(st.text("abc ", max_size=5), st.text("abc ", max_size=8))
def test_the_score_is_the_best_of_all_ways(query: str, text: str) -> None:
    def value(places: tuple[int, ...]) -> int:
        starts = sum(text[at] != " " and (at == 0 or text[at - 1] == " ") for at in places)
        return len(places) + starts + 2 * sum(b == a + 1 for a, b in pairwise(places))

    ways = [ways for ways in combinations(range(len(text)), len(query)) if query]
    scores = [value(way) for way in ways if "".join(text[at] for at in way) == query]
    score, places = match(query, text)
    assert score == max(scores, default=0)
    assert not scores or value(places) == score


@pytest.mark.parametrize(
    ("typed", "title"),
    [
        ("temperature", "Decoding settings of this chat"),
        ("beam", "Decoding settings of this chat"),
        ("Undo", "Reopen the last closed chat"),
        ("exit", "Quit"),
        ("dark", "Choose a theme"),
        ("history", "Go to a chat, or search in all"),
        ("fork", "Fork this chat"),
    ],
)
def test_other_words_for_a_command_find_it(typed: str, title: str) -> None:
    listed = [PaletteEntry(each.title, each.group, "", AsyncMock(), each.also) for each in commands(BUILT_IN)]
    assert max(listed, key=lambda entry: entry.match(typed)[0]).title == title
