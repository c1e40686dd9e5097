"""Rows fit, show the source text, and never contain control characters."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from minichat.ui.transcript import ASCII, UNICODE
from minichat.ui.transcript.glyphs import drawable, pasteable
from minichat.ui.transcript.markdown.canvas import Canvas
from minichat.ui.transcript.markdown.cells import cell_width, wrap
from minichat.ui.transcript.markdown.document import Document
from minichat.ui.transcript.markdown.draw import draw
from minichat.ui.transcript.markdown.inline import Run, parse
from minichat.ui.transcript.markdown.leaves import Leaf
from minichat.ui.transcript.markdown.splitter import Splitter
from minichat.ui.transcript.markdown.table import fitted
from tests.widgets.transcript.texts import EVERYTHING, texts


def leaves(text: str) -> list[Leaf]:
    splitter = Splitter(text)
    splitter.advance()
    return splitter.leaves


def rows(text: str, width: int = 40) -> list[str]:
    return [row.text for leaf in leaves(text) for row in draw(leaf, width, UNICODE).rows]


def document(width: int, *, plain: bool = False) -> Document:
    return Document(Canvas(width, UNICODE, lambda look: Style()), plain=plain)


def drawn_lines(made: Document) -> list[str]:
    return [row.text for index in range(len(made.leaves)) for row in made.sheet(index).drawn.rows]


def sendable(text: str) -> bool:
    """Whether the text has no control character, no bidirectional control, and no lone surrogate."""
    return all(
        unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        and character not in "\u202e\u2066\u200d\ufe0f"
        for character in text
    )


@given(texts, st.integers(4, 60), st.sampled_from([UNICODE, ASCII]))
def test_rows_fit_and_are_harmless(text: str, width: int, glyphs: object) -> None:
    assert glyphs in (UNICODE, ASCII)
    for leaf in leaves(text):
        drawn = draw(leaf, width, UNICODE if glyphs is UNICODE else ASCII)
        for row in drawn.rows:
            assert row.width <= width
            assert sendable(row.text)
            for fragment in row.fragments:
                if fragment.at >= 0:
                    assert drawn.plain[fragment.at :][: len(fragment.text)] == fragment.text


@given(texts, st.integers(4, 60))
def test_folding_loses_only_white_space(text: str, width: int) -> None:
    for leaf in leaves(text):
        drawn = draw(leaf, width, UNICODE)
        shown = {
            at
            for row in drawn.rows
            for fragment in row.fragments
            if fragment.at >= 0
            for at in range(fragment.at, fragment.at + len(fragment.text))
        }
        assert not "".join(drawn.plain[at] for at in range(len(drawn.plain)) if at not in shown).strip()


@given(texts, st.lists(st.integers(0, 200), max_size=8), st.integers(5, 50))
def test_streamed_lines_equal_those_of_the_whole_text(text: str, cuts: list[int], width: int) -> None:
    whole, streamed, at = document(width), document(width), 0
    whole.feed(text, lambda: False)
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        before = drawn_lines(streamed)
        line, _ = streamed.extend(text[at:cut], "", lambda: False)
        assert drawn_lines(streamed)[:line] == before[:line]  # its text is unchanged
        at = cut
    assert drawn_lines(streamed) == drawn_lines(whole)


@given(st.text(max_size=80), st.integers(1, 20))
def test_wrapped_lines_fit(text: str, width: int) -> None:
    plain = drawable(text.replace("\t", " "))
    lines = wrap(plain, width)
    assert all(cell_width(plain[start:end]) <= max(2, width) for start, end in lines)
    assert [start for start, _ in lines] == sorted(start for start, _ in lines)


TEXT = "a log:\n  * 2*3*4  \n\n\tif x:\n\t\treturn # Title\n1. https://example.org/a\n"
TEXT += "```py\ndef f(): pass\n```\n> so"


def test_a_user_message_keeps_its_lines_and_its_markup() -> None:
    made = document(40, plain=True)
    made.feed(TEXT, lambda: False)
    assert drawn_lines(made) == [
        "a log:",
        "  * 2*3*4  ",
        "",
        "    if x:",
        "        return # Title",
        "1. https://example.org/a",
        "│ py",
        "│ def f(): pass",
        "> so",
    ]
    assert "\n".join(made.text[leaf.start : leaf.end] for leaf in made.leaves) == TEXT
    assert [link.address for link in made.sheet(0).drawn.links] == ["https://example.org/a"]


@given(texts, st.integers(4, 60))
def test_all_of_a_user_message_is_visible(text: str, width: int) -> None:
    text = re.sub("[`~]", "'", text[:1900])  # without a fence, and in one leaf
    made = document(width, plain=True)
    made.feed(text, lambda: False)
    seen = [made.sheet(index).drawn for index in range(len(made.leaves))]
    lines = text.replace("\r\n", "\n").removesuffix("\r").removesuffix("\n")
    assert "\n".join(each.plain for each in seen) == drawable(lines.expandtabs(4))
    assert all(row.width <= width and sendable(row.text) for each in seen for row in each.rows)


def test_words_stay_whole_and_ideographs_may_be_split() -> None:
    assert rows("one two three", 9) == ["one two", "three"]
    assert rows("中文中文中文", 5) == ["中文", "中文", "中文"]
    assert rows("a" * 25, 10) == ["a" * 10, "a" * 10, "a" * 5]


def test_a_document_at_a_readable_width() -> None:
    assert rows(EVERYTHING, 40)[:8] == [
        "Title",
        "Some text bold more text with a link and",
        "code",
        "",
        "• one two",
        "  ◦ nested",
        "",
        "    para in nested",
    ]
    assert "   │ def f():" in rows(EVERYTHING, 40)
    assert "▎ • in quote" in rows(EVERYTHING, 40)


def test_table_columns_align_and_fold() -> None:
    table = "| left | n |\n|---|--:|\n| some words here | 1 |\n| x | 22 |"
    assert rows(table) == [
        "left            │  n",
        "────────────────┼───",
        "some words here │  1",
        "x               │ 22",
    ]
    assert rows(table, 14) == [
        "left      │  n",
        "──────────┼───",
        "some      │  1",
        "words     │   ",
        "here      │   ",
        "x         │ 22",
    ]
    assert rows(table, 8)[:2] == ["left │ n", "some"]  # no room for columns: shown as running text
    many = "\n".join("|" + 12 * f" {word} |" for word in ("name", "---", "a b"))
    assert rows(many, 40) == [
        "name │ name │ name │ name │ name │ name",
        "│ name │ name │ name │ name │ name │",
        "name",
        "a b │ a b │ a b │ a b │ a b │ a b │ a b",
        "│ a b │ a b │ a b │ a b │ a b",
    ]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(8, 200))
def test_columns_share_the_width(natural: list[int], room: int) -> None:
    widths = fitted(natural, room)
    assert all(1 <= width <= expected for width, expected in zip(widths, natural, strict=True))
    assert sum(widths) <= max(room, len(natural))


def test_the_lines_of_an_item_are_indented_below_its_text() -> None:
    source = "- an item that is long\n  1. a number in it\n     - and deeper\n\n     its second part"
    assert rows(source, 16) == [
        "• an item that",
        "  is long",
        "  1. a number in",
        "     it",
        "     ◦ and",
        "       deeper",
        "",
        "     its second",
        "     part",
    ]


def test_long_code_lines_wrap_with_a_mark() -> None:
    assert rows("```\nabcdefghijklmnop\n```", 10) == ["│ abcdef", "│ ↪ ghijkl", "│ ↪ mnop"]


def test_tabs_in_code_are_drawn_as_spaces_and_copied_as_tabs() -> None:
    (leaf,) = leaves("```\nif:\n\tx\ty\n```")
    drawn = draw(leaf, 40, UNICODE)
    assert [row.text for row in drawn.rows] == ["│ if:", "│     x   y"]
    assert drawn.plain == "if:\n\tx\ty"


def test_links_and_bare_addresses_are_found() -> None:
    runs = parse("see [the paper](https://a.org/x), https://b.org/y. Not [js](javascript:alert(1))")
    assert [(run.text, run.link) for run in runs if run.link] == [
        ("the paper", "https://a.org/x"),
        ("https://b.org/y", "https://b.org/y"),
    ]


@pytest.mark.parametrize("noise", ["[" * 2000, "[[a](" * 400, "*a_" * 600, "![" * 1000])
def test_incomplete_markup_is_shown_literally(noise: str) -> None:
    assert "".join(run.text for run in parse(noise)) == noise


@pytest.mark.parametrize(
    "formula",
    [r"\(x^2 \, y_1\)", r"\[ a_1 * b_2 * c \]", r"$$\int_0^1 x\,dx$$", "$E = mc^2$", r"$\{a_1*b_1*c\}$"],
)
def test_a_formula_is_shown_as_written(formula: str) -> None:
    assert [*parse(f"*so* {formula} is")] == [Run("so", ("em",)), Run(" "), Run(formula), Run(" is")]


def test_a_price_is_no_formula() -> None:
    text = r"from $5 to *$10*, or $5-*$10*, or \$HOME, \(*open*"
    assert "".join(run.text for run in parse(text)) == "from $5 to $10, or $5-$10, or $HOME, (open"


def test_control_characters_become_symbols() -> None:
    assert drawable("a\x1b[31m\x07\x9b\u202eb\x7f") == "a␛[31m␇\ufffd\ufffdb␡"
    assert drawable("👩\u200d🚀❤\ufe0f") == "👩🚀❤"
    assert drawable("👍\U0001f3fd, ☝\U0001f3ff") == "👍, ☝"
    assert drawable("e" + "\u0301" * 50) == "e" + "\u0301" * 4
    assert pasteable("a\r\nb\x1bc👩\u200d🚀") == "a\nb␛c👩\u200d🚀"


def test_entities_cannot_reintroduce_control_characters() -> None:
    assert all(sendable(run.text) for run in parse("&#27;[2J &#x9b; &#8238; *x*"))


def test_ascii_mode_uses_only_ascii() -> None:
    text = "# T\n- a\n  - b\n> q\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n```py\n" + "x" * 60 + "\n```"
    assert all(row.text.isascii() for leaf in leaves(text) for row in draw(leaf, 30, ASCII).rows)
