"""Finding scrolls to a match, shows its number, and wraps around."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from minichat.ui.picture import strips_of
from minichat.ui.transcript import UNICODE
from minichat.ui.transcript.finding import Find
from minichat.ui.transcript.markdown.canvas import Canvas
from minichat.ui.transcript.view import View
from tests.cases import case
from tests.widgets.transcript.reader import Reader, reading, reply, scene, user

MESSAGES = [
    reply(f"Apple {number}\n\n" + "filler\n\n" * 12 + "pear **pl**um", number) for number in range(10)
]


def marked(reader: Reader, look: str) -> list[str]:
    """The rendered text that has the given style."""
    style = reader.transcript.get_component_rich_style(f"transcript--{look}", partial=True)
    return [
        segment.text
        for strip in strips_of(reader.app.screen)
        for segment in strip
        if segment.style and segment.style.reverse and bool(segment.style.underline) == bool(style.underline)
    ]


@scene
async def test_next_and_previous_scroll_to_matches() -> None:
    async with reading((40, 12)) as reader:
        reader.transcript.show(MESSAGES, "a")
        await reader.settled()
        await reader.press("home")
        assert reader.transcript.find("APPLE 3")
        await reader.settled()
        assert marked(reader, "current") == ["Apple 3"]
        assert reader.transcript.find_count == (1, 1, True)
        assert not reader.transcript.following
        reader.transcript.find("apple")
        assert reader.transcript.find_next()
        await reader.settled()
        assert reader.transcript.find_count == (5, 10, True)
        await reader.press("N", "N")
        assert reader.transcript.find_count == (3, 10, True)
        assert "Apple 2" in reader.drawn()
        reader.transcript.clear_find()
        await reader.settled()
        assert marked(reader, "current") == []


def test_what_is_found_is_counted_on_a_busy_machine() -> None:
    """A slice of time may be over before anything was counted; "not found" would be wrong then."""
    view = View(Canvas(40, UNICODE, lambda look: Style()))
    view.show(MESSAGES, "a")
    find = Find(view, "apple")
    assert find.start(0, (0, 0))
    assert find.count(lambda: True) == (1, 10, True)
    view.show([reply("filler " * 20_000 + "apple", number) for number in range(9)], "a")
    find = Find(view, "apple")
    assert find.start(4, (0, 0))
    _, total, whole = find.count(lambda: True)
    assert total >= 1 and not whole


@scene
async def test_missing_text_is_not_found() -> None:
    async with reading() as reader:
        reader.transcript.show(MESSAGES, "a")
        await reader.settled()
        assert not reader.transcript.find("quince")
        assert not reader.transcript.find_next()
        assert not reader.transcript.find("")


@scene
async def test_every_match_in_view_is_highlighted() -> None:
    async with reading() as reader:
        reader.transcript.show([reply("cat **cat** dog\n\ncat", 1)], "a")
        await reader.settled()
        reader.transcript.find("cat")
        await reader.settled()
        assert marked(reader, "current") == ["cat"]
        assert marked(reader, "found") == ["cat", "cat"]


@scene
async def test_words_are_found_as_they_are_drawn() -> None:
    text = "The **KV cache** holds `keys`, and\n_values_ too.\n\nvalues too, KV\n\ncache"
    messages = [user("KV cache, as **KV** cache", 1), reply(text, 2)]
    async with reading() as reader:
        reader.transcript.show(messages, "a")
        await reader.settled()
        for words, count, drawn in (
            ("the kv cache holds", 1, "The KV cache holds"),
            ("keys, and values too", 1, "keys, and values too"),
            ("KV cache", 2, "KV cache"),
            ("values too", 2, "values too"),
        ):
            with case(words):
                assert reader.transcript.find(words)
                await reader.settled()
                assert reader.transcript.find_count == (1, count, True)
                assert "".join(marked(reader, "current")) == drawn
        assert not reader.transcript.find("too. values"), "two paragraphs"


@scene
async def test_a_word_with_markup_inside_is_found_as_it_is_drawn() -> None:
    text = "apple, **app**le\n\nA `block`s **K**ey-**V**alue ***c***ache, snake_case"
    async with reading() as reader:
        reader.transcript.show([reply(text, 1), user("**app**le", 2)], "a")
        await reader.settled()
        for words, count, drawn in (
            ("APPLE", 2, "apple"),
            ("blocks", 1, "blocks"),
            ("key", 1, "Key"),
            ("key-value cache", 1, "Key-Value cache"),
        ):
            with case(words):
                assert reader.transcript.find(words)
                await reader.settled()
                assert reader.transcript.find_count == (1, count, True)
                assert "".join(marked(reader, "current")) == drawn
                assert not any("**" in each for each in marked(reader, "found"))
        assert not reader.transcript.find("snakecase"), "its underscore is drawn"


CODE = """Write `a*b`, **a**b and ``x**2``.

> ```py
> a*b, snake_ case
> x**2
> ```

~~~
a`b
~~~

- ```
  a~b

  a*b
  ```

An `open mark, **a**b

```
a*b"""


@scene
async def test_in_code_stars_are_no_markup() -> None:
    async with reading((40, 40)) as reader:
        reader.transcript.show([reply(CODE, 1)], "a")
        await reader.settled()
        for words, count in (("ab", 2), ("a*b", 4), ("a`b", 1), ("a~b", 1), ("x**2", 2), ("case", 1)):
            with case(words):
                assert reader.transcript.find(words)
                await reader.settled()
                assert reader.transcript.find_count == (1, count, True)
                assert "".join(marked(reader, "current")) == words
                assert "".join(marked(reader, "found")) == words * (count - 1)
        for words in "x2", "snake case":
            assert not reader.transcript.find(words), words


@scene
async def test_only_what_is_drawn_is_counted() -> None:
    for text, words, count in (
        ("2 * 3 and a*b", "ab", 0),  # stray stars in prose
        ("a* b", "a b", 0),
        ("5 * 3 is a \\* b", "a * b", 1),
        ("**app**le", "**app**le", 0),
        ("**app**le", "ple", 1),
        ("` a``b `", "ab", 0),
        ("` a``b `", "a``b", 1),
        ("[link](http://abc)", "abc", 0),
    ):
        with case((text, words)):
            async with reading() as reader:
                reader.transcript.show([reply(text, 1)], "a")
                await reader.settled()
                assert reader.transcript.find(words) == bool(count)
                await reader.settled()
                assert reader.transcript.find_count == (count, count, True)
                assert "".join(marked(reader, "current")) == (words if count else "")


@scene
async def test_reasoning_is_searched_and_unfolds_at_a_match() -> None:
    thought = replace(
        reply("Four, then a needle.\n\n" + "hay\n\n" * 20, 1), reasoning="hay\n\n" * 9 + "A secret needle"
    )
    async with reading((40, 12)) as reader:
        reader.transcript.show([user("hello", 0), thought, reply("needle " + "hay\n\n" * 20, 2)], "a")
        await reader.settled()
        assert reader.transcript.find("SECRET")
        await reader.settled()
        assert reader.transcript.find_count == (1, 1, True)
        assert marked(reader, "current") == ["secret"]
        await reader.press("home")
        reader.transcript.find("needle")
        for place, seen in (
            (1, "A secret needle"),
            (2, "Four, then a needle"),
            (3, "needle hay"),
            (1, "A secret"),
        ):
            assert reader.transcript.find_count == (place, 3, True)
            await reader.settled()
            assert seen in reader.drawn() and marked(reader, "current") == ["needle"]
            assert reader.transcript.find_next()


@scene
async def test_reasoning_is_folded_again_only_when_the_match_is_left() -> None:
    messages = [replace(reply("Four.", number), reasoning=f"secret {number}") for number in (1, 2)]
    async with reading((40, 12)) as reader:
        reader.transcript.show(messages, "a")
        await reader.settled()
        reader.transcript.find("secret 1")
        await reader.settled()
        assert "secret 1" in reader.drawn()
        reader.transcript.find("secret 2")
        await reader.settled()
        assert "secret 2" in reader.drawn() and "secret 1" not in reader.drawn()
        reader.transcript.clear_find()
        await reader.settled()
        assert "secret 2" in reader.drawn()


@given(
    st.lists(st.text("aAbİß ", max_size=12), min_size=1, max_size=6), st.text("abİß", min_size=1, max_size=2)
)
def test_stepping_visits_every_match_once(sources: list[str], expected: str) -> None:
    view = View(Canvas(30, UNICODE, lambda look: Style()))
    view.show([reply(text, number) for number, text in enumerate(sources)], "a")
    find = Find(view, expected)
    plain = [
        (number, found.start())
        for number, text in enumerate(sources)
        for found in re.finditer(re.escape(expected), text, re.IGNORECASE)
    ]
    visited = []
    for _ in plain:
        assert find.step(1)
        assert find.current
        visited.append((find.current.entry - view.entries[0].serial, find.current.offset))
    assert visited == plain
    assert find.step(1) == bool(plain)
    if plain and find.current:
        assert find.current.offset == plain[0][1]
