"""Pasted text is text, whatever it contains and however it is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.drivers import linux_driver
from textual.events import Key, Paste

from minichat.shell.pasting import PasteParser, Pasting, install

BEGIN, END = "\x1b[200~", "\x1b[201~"
COLORED = "one\n\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1bOP end\n\x1b"
SENT = f"ab\x1b[200~{COLORED}\x1b[201~c\x1b[A"


def read(pieces: list[str]) -> list[str]:
    """Keys by name, pastes by text."""
    parser, found = PasteParser(), []
    for piece in pieces:
        for token in parser.feed(piece):
            assert isinstance(token, Key | Paste)
            found.append(token.key if isinstance(token, Key) else token.text)
    return found


def test_an_escape_in_a_paste_is_a_character() -> None:
    assert read([SENT]) == ["a", "b", COLORED.replace("\x1b", "␛"), "c", "up"]


def test_a_paste_may_be_split_anywhere() -> None:
    whole = read([SENT])
    for first in range(1, len(SENT)):
        assert read([SENT[:first], SENT[first:]]) == whole
    assert read(list(SENT)) == whole


def test_keys_are_read_as_before() -> None:
    assert read(["\x1b[A", "\x1b[B\x1b[Cx"]) == ["up", "down", "right", "x"]
    assert read(["\x1b[200~\x1b[201~x"])[-1:] == ["x"]


def test_an_unmarked_burst_of_text_is_a_paste() -> None:
    """From a terminal that does not mark pastes. Short text is typed."""
    long = "word " * 40
    assert read([long]) == [long]
    assert read(["a", long, "b"]) == ["a", long, "b"]
    assert read([long[:100]]) == [{" ": "space"}.get(each, each) for each in long[:100]]
    assert read(["\x1b[A", "x", "yyyyy", long]) == ["up", "x", *"yyyyy", long]


def test_lines_of_an_unmarked_paste_are_one_text() -> None:
    """They would be sent one by one. Enter after the last one is a key."""
    lines = "\r".join(f"\tline {number} of a log" for number in range(20))
    assert read([lines]) == [lines]
    assert read([lines + "\r"]) == [lines, "enter"]
    assert read([lines, "\r"]) == [lines, "enter"]
    assert read(["short\r", "lines\r"]) == [*"short", "enter", *"lines", "enter"]


def test_the_rest_of_an_unmarked_paste_follows_at_once() -> None:
    lines = "\r".join(f"line {number} of a log" for number in range(20))
    now = 5.0
    pasting = Pasting(lambda: now)
    assert pasting.clean(lines) == f"{BEGIN}{lines}{END}"
    now += 0.01
    assert pasting.clean(" and\rits end\r") == f"{BEGIN} and\rits end{END}\r"
    assert pasting.clean("\r") == "\r"
    now += 1
    assert pasting.clean("typed\rlater") == "typed\rlater"


def test_a_long_answer_of_the_terminal_is_no_paste() -> None:
    answer = "\x1b]52;c;" + "A" * 300
    parser = PasteParser()
    assert not any(
        isinstance(each, Paste) for part in (answer, "B" * 300, "\x07") for each in parser.feed(part)
    )


@pytest.mark.parametrize("text", ["Tell " + "me " * 12, "Please " + "tell me " * 4])
def test_escape_and_text_at_once(text: str) -> None:
    keys = ["space" if each == " " else each for each in text]
    assert read([f"\x1b{text}"]) == ["escape", *keys]
    for first in range(1, len(text)):  # in two reads
        assert read([f"\x1b{text}"[:first], f"\x1b{text}"[first:]]) == ["escape", *keys]


@pytest.mark.parametrize("text", ["]52;c;" + "A" * 40, "P>|a terminal, version " + "3." * 9, "2^3 " * 9])
def test_what_may_be_an_answer_is_no_escape_key(text: str) -> None:
    assert "escape" not in read([f"\x1b{text}"])


@pytest.mark.parametrize("key", ["1b:4u", "[:0u", "[0:4~", "[;:44C", "[99999999999999R", "[9:u"])
def test_a_malformed_key_is_ignored(key: str) -> None:
    found = read([f"a\x1b{key}", "b\x1b[A", f"\x1b{key}\x1b[Bc"])
    assert found[0] == "a" and found[-1] == "c"
    assert [each for each in found if each in ("up", "down")] == ["up", "down"]


def test_any_bytes_can_be_read() -> None:
    parts = st.sampled_from(
        [b"\x1b[", b"\x1b[<", b"\x1b[M", b"\x1bO", b"\x1b]", b"200~", b"201~", b";", b":"]
    )

    @given(st.lists(parts | st.binary(max_size=9) | st.integers().map(lambda n: b"%du" % n), max_size=12))
    def check(pieces: list[bytes]) -> None:
        install()
        parser, decode = PasteParser(), vars(linux_driver)["getincrementaldecoder"]("utf-8")().decode
        for each in pieces:
            list(parser.feed(text) if (text := decode(each)) else [])

    check()


def test_the_driver_uses_this_parser() -> None:
    install()
    assert vars(linux_driver)["XTermParser"] is PasteParser


def test_input_that_is_not_utf_8_ends_nothing() -> None:
    """Of a terminal in Latin-1, of a damaged line, of a binary file that was pasted."""
    install()
    decode = vars(linux_driver)["getincrementaldecoder"]("utf-8")().decode
    assert decode("é 漢".encode()[:-1]) + decode("é 漢".encode()[-1:]) == "é 漢"
    assert decode("é".encode("latin-1") + b"a\xff\xc0\x80") == "�a���"
    assert decode("漢".encode()[:2], final=True) == "�"
