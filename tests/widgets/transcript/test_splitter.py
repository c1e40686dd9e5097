"""Leaves do not depend on how a text came in; every character of it is in one of them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from minichat.widgets.transcript.leaves import MAX_CODE, MAX_TEXT, Leaf
from minichat.widgets.transcript.splitter import Splitter
from tests.widgets.transcript.texts import EVERYTHING, texts


def leaves(text: str) -> list[Leaf]:
    splitter = Splitter(text)
    splitter.advance()
    return splitter.leaves


def kinds(text: str) -> list[tuple[str, str]]:
    return [(leaf.kind, leaf.text) for leaf in leaves(text)]


def in_pieces(text: str, cuts: list[int]) -> list[Leaf]:
    splitter, at = Splitter(), 0
    for cut in [*sorted(cuts), len(text)]:
        splitter.feed(text[at:cut])
        splitter.advance()
        at = cut
    return splitter.leaves


@given(texts, st.data())
def test_any_pieces_give_the_leaves_of_the_whole(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert in_pieces(text, cuts) == leaves(text)


def test_one_character_at_a_time_gives_the_leaves_of_the_whole() -> None:
    assert in_pieces(EVERYTHING, list(range(len(EVERYTHING)))) == leaves(EVERYTHING)


@given(st.integers(1, 3 * MAX_TEXT), st.lists(st.integers(0, 3 * MAX_TEXT), max_size=6), st.booleans())
def test_long_lines_are_parted_alike(length: int, cuts: list[int], fenced: bool) -> None:
    line = ("```\n" if fenced else "") + "ab cde " * (length // 7) + "x" * length + "\n# after"
    assert in_pieces(line, [min(cut, len(line)) for cut in cuts]) == leaves(line)


@given(texts)
def test_leaves_are_small_and_in_order(text: str) -> None:
    found = leaves(text * 20)
    assert all(len(leaf.text) <= max(MAX_CODE, MAX_TEXT) + 1 for leaf in found)
    assert all(before.end <= after.start for before, after in pairwise(found))


@given(texts)
def test_what_is_in_no_leaf_is_white_space_or_a_quote_mark(text: str) -> None:
    at, between = 0, ""
    for leaf in leaves(text):
        between += text[at : leaf.start]
        at = leaf.end
    assert not (between + text[at:]).strip("> \t\r\n")


def test_work_in_slices_ends_where_one_go_does() -> None:
    text = (EVERYTHING + "\n\n") * 50
    splitter = Splitter(text)
    rounds = 0
    while not splitter.advance(lambda: True):
        rounds += 1
        assert splitter.behind
    assert rounds > 10
    assert splitter.leaves == leaves(text)


def test_blocks() -> None:
    assert kinds("# One #\ntext\n\n---\n## Two") == [
        ("heading", "One"),
        ("text", "text"),
        ("rule", ""),
        ("heading", "Two"),
    ]
    assert kinds("para\n===") == [("heading", "para")]
    assert kinds("```py\na\n\n  b\n```\nafter") == [("code", "a\n\n  b\n"), ("text", "after")]
    assert kinds("~~~\n```\n~~~") == [("code", "```\n")]
    assert kinds("    code\n    more") == [("code", "code\nmore\n")]
    assert kinds("text\n    not code") == [("text", "text\nnot code")]


def test_a_table_may_follow_a_line_of_text() -> None:
    assert kinds("intro\n| a | b |\n|---|--:|\n| 1 | 2 |\n\nend") == [
        ("text", "intro"),
        ("table", "| a | b |\n| 1 | 2 |"),
        ("text", "end"),
    ]
    assert leaves("| a | b |\n|---|--:|")[0].info == "lr"
    assert kinds("a | b\n---|---|---")[0][0] == "text"  # not as many columns


def test_lists_nest_and_end() -> None:
    found = leaves("- a\n  - b\n\n    c\n- d\n\nout")
    assert [(leaf.text, len(leaf.containers), leaf.fresh) for leaf in found] == [
        ("a", 1, 1),
        ("b", 2, 1),
        ("c", 2, 0),
        ("d", 1, 1),
        ("out", 0, 0),
    ]


def test_a_number_in_running_text_is_no_list() -> None:
    assert kinds("It was in\n1986. A good year") == [("text", "It was in\n1986. A good year")]


def test_a_fence_in_an_item_ends_with_it() -> None:
    found = leaves("1. do\n\n   ```sh\n   ls\n\n   pwd\n2. then")
    assert [(leaf.kind, leaf.text) for leaf in found] == [
        ("text", "do"),
        ("code", "ls\n\npwd\n"),
        ("text", "then"),
    ]


def test_depth_is_bounded() -> None:
    (leaf,) = leaves(">" * 1500)
    assert len(leaf.containers) == 8
