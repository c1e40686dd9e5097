"""Leaves do not depend on how a text was split into chunks; every character is in one of them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from minichat.ui.transcript.markdown.leaves import MAX_CODE, MAX_PLAIN, MAX_TEXT, Leaf
from minichat.ui.transcript.markdown.splitter import Splitter
from tests.widgets.transcript.texts import EVERYTHING, texts


def leaves(text: str) -> list[Leaf]:
    splitter = Splitter(text)
    splitter.advance()
    return splitter.leaves


def kinds(text: str) -> list[tuple[str, str]]:
    return [(leaf.kind, leaf.text) for leaf in leaves(text)]


def plain_leaves(text: str) -> list[Leaf]:
    splitter = Splitter(text, plain=True)
    splitter.advance()
    return splitter.leaves


def in_pieces(text: str, cuts: list[int]) -> list[Leaf]:
    splitter, at = Splitter(), 0
    for cut in [*sorted(cuts), len(text)]:
        splitter.feed(text[at:cut])
        splitter.advance()
        at = cut
    return splitter.leaves


@given(texts, st.data())
def test_any_chunks_give_the_leaves_of_the_whole(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert in_pieces(text, cuts) == leaves(text)


def test_one_character_at_a_time_gives_the_leaves_of_the_whole() -> None:
    assert in_pieces(EVERYTHING, list(range(len(EVERYTHING)))) == leaves(EVERYTHING)


@given(st.integers(1, 3 * MAX_TEXT), st.lists(st.integers(0, 3 * MAX_TEXT), max_size=6), st.booleans())
def test_long_lines_are_split_the_same_way(length: int, cuts: list[int], fenced: bool) -> None:
    line = ("```\n" if fenced else "") + "ab cde " * (length // 7) + "x" * length + "\n# after"
    assert in_pieces(line, [min(cut, len(line)) for cut in cuts]) == leaves(line)


def test_a_long_line_of_a_user_message_is_one_leaf() -> None:
    """A row breaks where two leaves meet. A user's message arrives whole, and a page of it costs little."""
    line = "word " * 3000
    assert [leaf.text for leaf in plain_leaves(line)] == [line]
    pieces = plain_leaves(line * 4)
    assert "".join(leaf.text for leaf in pieces) == line * 4
    assert all(len(leaf.text) <= MAX_PLAIN for leaf in pieces)


@given(texts)
def test_leaves_are_small_and_in_order(text: str) -> None:
    found = leaves(text * 20)
    assert all(len(leaf.text) <= max(MAX_CODE, MAX_TEXT) + 1 for leaf in found)
    assert all(before.end <= after.start for before, after in pairwise(found))


@given(texts)
def test_only_white_space_and_quote_marks_are_in_no_leaf(text: str) -> None:
    at, between = 0, ""
    for leaf in leaves(text):
        between += text[at : leaf.start]
        at = leaf.end
    assert not (between + text[at:]).strip("> \t\r\n")


def test_parsing_in_slices_gives_the_same_result() -> None:
    text = (EVERYTHING + "\n\n") * 50
    splitter = Splitter(text)
    rounds = 0
    while not splitter.advance(lambda: True):
        rounds += 1
        assert splitter.behind
    assert rounds > 10
    assert splitter.leaves == leaves(text)


def test_the_kinds_of_leaves() -> None:
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
    assert kinds("a | b\n---|---|---")[0][0] == "text"  # fewer columns than the header


def test_lists_nest_and_end() -> None:
    found = leaves("- a\n  - b\n\n    c\n- d\n\nout")
    assert [(leaf.text, len(leaf.containers), leaf.fresh) for leaf in found] == [
        ("a", 1, 1),
        ("b", 2, 1),
        ("c", 2, 0),
        ("d", 1, 1),
        ("out", 0, 0),
    ]


def test_a_number_in_running_text_starts_no_list() -> None:
    assert kinds("It was in\n1986. A good year") == [("text", "It was in\n1986. A good year")]
    assert kinds("> It was in\n> 1986. A good year") == [("text", "It was in\n1986. A good year")]
    assert kinds("- It was in\n  1986. A good year") == [("text", "It was in\n1986. A good year")]


def marks(text: str) -> list[tuple[str, str]]:
    """The containers and the text of each leaf."""
    return [(" ".join(each.mark for each in leaf.containers), leaf.text) for leaf in leaves(text)]


def test_each_number_of_a_list_starts_an_item() -> None:
    assert marks("1. a\n2. b\n3. c") == [("1.", "a"), ("2.", "b"), ("3.", "c")]
    assert marks("7) a\n   more\n8) b\nlazy") == [("7)", "a\nmore"), ("8)", "b\nlazy")]
    assert marks("1. a\n   - x\n   - y\n2. b") == [("1.", "a"), ("1. -", "x"), ("1. -", "y"), ("2.", "b")]
    assert marks("- a\n  1. x\n  2. y\n- b") == [("-", "a"), ("- 1.", "x"), ("- 2.", "y"), ("-", "b")]
    assert marks("1. a\n2.\n3. c") == [("1.", "a"), ("2.", ""), ("3.", "c")]


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


_LINES = (
    *("1. a", "2. b", "10. c", "2) d", "- e", "* f", "  - g", "   1. h", "   2. i", "   - j", ""),
    *("text", "   text", "# title", "```", "   ```", "> q", "> 1. r", "> 2. s", "| t | u |", "|---|---|"),
)


@given(st.lists(st.sampled_from(_LINES), max_size=8).map("\n".join))
def test_items_and_paragraphs_match_a_full_parser(text: str) -> None:
    found, tokens = leaves(text), MarkdownIt("commonmark").enable("table").parse(text)
    begun = [each for leaf in found for each in leaf.containers[len(leaf.containers) - leaf.fresh :]]
    assert sum(not each.quotes for each in begun) == sum(token.type == "list_item_open" for token in tokens)
    paragraphs = sum(token.type == "paragraph_open" for token in tokens)
    assert sum(leaf.kind == "text" for leaf in found) == paragraphs


def test_indented_code_continues_after_blank_lines() -> None:
    assert kinds("    a\n\n    b\n\n\n      c\n\ntext") == [("code", "a\n\nb\n\n\n  c\n"), ("text", "text")]
    assert [leaf.gap for leaf in leaves("    a\n\n# b\n    c")] == [False, True, False]
    assert kinds(">     a\n>\n>     b\n\n>     c") == [("code", "a\n\nb\n"), ("code", "c\n")]
    found = leaves("    a\n" + "\n" * 2 * MAX_CODE + "    b")  # more blank lines than fit into a leaf
    assert [leaf.text for leaf in found] == ["a\n", "b\n"]


_INDENTED = ("    a", "      b", "", "text", "# title", "> q", ">     r", "- i", "      j")


@given(st.lists(st.sampled_from(_INDENTED), max_size=8).map("\n".join))
def test_indented_code_matches_a_full_parser(text: str) -> None:
    blocks = [token.content for token in MarkdownIt("commonmark").parse(text) if token.type == "code_block"]
    assert [leaf.text for leaf in leaves(text) if leaf.kind == "code"] == blocks
