"""Stop strings are found wherever the pieces of a text happen to break."""

from hypothesis import given
from hypothesis import strategies as st

from engine.text import StopFinder

WORDS = st.text("ab\n", max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The whole text at once: the stop that ends first, and of those the longest."""
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if include else end - len(stop)], stop


@given(pieces=st.lists(WORDS, max_size=10), stops=STOPS, include=st.booleans())
def test_as_if_the_text_were_whole(pieces: list[str], stops: list[str], include: bool) -> None:
    finder = StopFinder(stops, include=include)
    shown, hit = "", None
    for piece in pieces:
        text, hit = finder.push(piece)
        shown += text
    shown += finder.flush()
    assert (shown, hit) == naive("".join(pieces), stops, include)
    assert finder.hit == hit


@given(pieces=st.lists(WORDS, max_size=10), stops=STOPS)
def test_holds_back_no_more_than_it_must(pieces: list[str], stops: list[str]) -> None:
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


@given(said=WORDS, pieces=st.lists(WORDS, max_size=8), stops=STOPS, include=st.booleans())
def test_a_stop_may_begin_in_what_is_shown_already(
    said: str, pieces: list[str], stops: list[str], include: bool
) -> None:
    finder = StopFinder(stops, include=include)
    finder.prime(said)
    texts = [finder.push(piece)[0] for piece in pieces]
    begin = 0  # behind the stops that end in what was said: nobody asked for them
    while (found := naive(said[begin:], stops, include=True))[1]:
        begin += len(found[0])
    expected, hit = naive(said[begin:] + "".join(pieces), stops, include)
    assert finder.hit == hit
    assert "".join(texts) + finder.flush() == expected[len(said) - begin :]


@given(pieces=st.lists(WORDS, max_size=8), border=st.integers(0, 8), stops=STOPS)
def test_a_copy_goes_its_own_way(pieces: list[str], border: int, stops: list[str]) -> None:
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


def test_overlapping_itself() -> None:
    finder = StopFinder(["aab"])
    assert finder.push("aa") == ("", None)
    assert finder.push("a") == ("a", None)
    assert finder.push("b") == ("", "aab")


def test_the_one_that_is_complete_first() -> None:
    assert StopFinder(["bcd", "c"]).push("abcd") == ("ab", "c")
    assert StopFinder(["c", "bc"]).push("abcd") == ("a", "bc")
    assert StopFinder(["c"], include=True).push("abcd") == ("abc", "c")
