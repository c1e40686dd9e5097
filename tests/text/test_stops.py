"""Stop strings are found however the text is split into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from engine.text import StopFinder

WORDS = st.text("ab\n", max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Search the whole text at once: the stop that ends first, and the longest of those."""
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if include else end - len(stop)], stop


@given(pieces=st.lists(WORDS, max_size=10), stops=STOPS, include=st.booleans())
def test_pieces_give_the_same_as_the_whole_text(pieces: list[str], stops: list[str], include: bool) -> None:
    finder = StopFinder(stops, include=include)
    shown, hit = "", None
    for piece in pieces:
        text, hit = finder.push(piece)
        shown += text
    shown += finder.flush()
    assert (shown, hit) == naive("".join(pieces), stops, include)
    assert finder.hit == hit


@given(pieces=st.lists(WORDS, max_size=10), stops=STOPS)
def test_only_the_start_of_a_stop_is_held_back(pieces: list[str], stops: list[str]) -> None:
    finder = StopFinder(stops)
    whole = shown = ""
    for piece in pieces:
        whole += piece
        text, hit = finder.push(piece)
        shown += text
        if hit:
            return
        held = whole[len(shown) :]
        assert shown + held == whole
        assert held == "" or any(stop.startswith(held) for stop in stops)


@given(earlier=WORDS, pieces=st.lists(WORDS, max_size=8), stops=STOPS, include=st.booleans())
def test_a_stop_may_begin_in_earlier_text(
    earlier: str, pieces: list[str], stops: list[str], include: bool
) -> None:
    finder = StopFinder(stops, include=include)
    finder.prime(earlier)
    texts = [finder.push(piece)[0] for piece in pieces]
    begin = 0  # after the stops that end in the earlier text, which are ignored
    while (found := naive(earlier[begin:], stops, include=True))[1]:
        begin += len(found[0])
    expected, hit = naive(earlier[begin:] + "".join(pieces), stops, include)
    assert finder.hit == hit
    assert "".join(texts) + finder.flush() == expected[len(earlier) - begin :]


@given(pieces=st.lists(WORDS, max_size=8), border=st.integers(0, 8), stops=STOPS)
def test_a_copy_is_independent(pieces: list[str], border: int, stops: list[str]) -> None:
    first = StopFinder(stops)
    shown = "".join(first.push(piece)[0] for piece in pieces[:border])
    second = first.copy()
    second.push("ab\nab")
    shown += "".join(first.push(piece)[0] for piece in pieces[border:]) + first.flush()
    assert shown == naive("".join(pieces), stops, False)[0]


def test_nothing_after_a_stop() -> None:
    finder = StopFinder(["\n\nUser:"])
    assert finder.push("Yes.\n") == ("Yes.", None)
    assert finder.push("\nUs") == ("", None)
    assert finder.push("er: more") == ("", "\n\nUser:")
    assert finder.push("and more") == ("", "\n\nUser:")
    assert finder.flush() == ""


def test_a_stop_that_overlaps_itself() -> None:
    finder = StopFinder(["aab"])
    assert finder.push("aa") == ("", None)
    assert finder.push("a") == ("a", None)
    assert finder.push("b") == ("", "aab")


def test_the_first_complete_stop_is_found() -> None:
    assert StopFinder(["bcd", "c"]).push("abcd") == ("ab", "c")
    assert StopFinder(["c", "bc"]).push("abcd") == ("a", "bc")
    assert StopFinder(["c"], include=True).push("abcd") == ("abc", "c")
