"""Sanitizes untrusted text for the terminal; defines the transcript's glyphs."""

import re
from dataclasses import dataclass

from minichat.shell.streams import SHOWN

_DROPPED = (0x200B, 0x200E, 0x200F, 0x061C, 0x2060, 0xFEFF, 0xAD)
# Terminals disagree on the width of emoji with these; without them, all agree.
_SKINS = range(0x1F3FB, 0x1F400)
_JOINERS = (0x200D, 0xFE0E, 0xFE0F, *_SKINS)
_SKINLESS = dict.fromkeys(_SKINS)
_DRAWN = SHOWN | dict.fromkeys((*_DROPPED, *_JOINERS))

_HARMLESS = re.compile("[ -~\n]*").fullmatch
_PILE = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)


def drawable(text: str) -> str:
    """Replace every control character with a visible symbol, except tabs and newlines."""
    if text.isascii() and _HARMLESS(text):
        return text
    return _PILE.sub(r"\1", text.translate(_DRAWN))


def one_line(text: str) -> str:
    """The drawable text on one line, with white space collapsed to single spaces."""
    return drawable(" ".join(text.split()))


def skinless(text: str) -> str:
    """Drop emoji skin tones, for which Textual reserves no cell in input fields."""
    return text.translate(_SKINLESS)


def pasteable(text: str) -> str:
    """Text for the clipboard: complete, except for characters that would act on a terminal."""
    return text if text.isascii() and _HARMLESS(text) else text.replace("\r\n", "\n").translate(SHOWN)


def enterable(text: str) -> str:
    """Sanitize text put into an input field, so that the user sees exactly what will be sent."""
    return pasteable(text.replace("\r\n", "\n").replace("\r", "\n"))


_SIGNS = dict.fromkeys((*range(0x2400, 0x2422), 0x2424, 0xFFFD), "?")


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that the transcript draws with."""

    bar: str = "▌"  # before a message's header
    quote: str = "▎ "
    code: str = "│ "
    turn: str = "↪ "  # a wrapped code line
    bullets: tuple[str, ...] = ("•", "◦", "▪")
    rule: str = "─"
    column: str = " │ "
    cross: str = "─┼─"
    folded: str = "▸"
    open: str = "▾"
    fault: str = "✗"
    below: str = "↓"
    cut: str = "…"
    ascii: bool = False

    def writable(self, text: str) -> str:
        """Replace the symbols for control characters on a terminal without Unicode."""
        return text.translate(_SIGNS) if self.ascii and not text.isascii() else text


UNICODE = Glyphs()
ASCII = Glyphs(
    bar="|",
    quote="> ",
    code="| ",
    turn="\\ ",
    bullets=("-",),
    rule="-",
    column=" | ",
    cross="-+-",
    folded="+",
    open="-",
    fault="x",
    below="v",
    cut="~",
    ascii=True,
)
