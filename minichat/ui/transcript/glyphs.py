"""Text from outside made harmless to draw, and the few glyphs that the transcript draws itself."""

import re
from dataclasses import dataclass

_SHOWN: dict[int, str] = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)}
_SHOWN |= {0x7F: "␡", 0x2028: "␤", 0x2029: "␤"}
_SHOWN |= dict.fromkeys((*range(128, 160), *range(55296, 57344), *range(917504, 917632)), "�")
# Marks that turn the direction of what follows them: a terminal that obeys would show another text.
_SHOWN |= dict.fromkeys((*range(8234, 8239), *range(8294, 8298)), "�")
_DROPPED = (0x200B, 0x200E, 0x200F, 0x061C, 0x2060, 0xFEFF, 0xAD)
# Terminals disagree on how wide these make an emoji; without them, all agree.
_SKINS = range(0x1F3FB, 0x1F400)
_JOINERS = (0x200D, 0xFE0E, 0xFE0F, *_SKINS)
_SKINLESS = dict.fromkeys(_SKINS)
_DRAWN = _SHOWN | dict.fromkeys((*_DROPPED, *_JOINERS))

_HARMLESS = re.compile("[ -~\n]*").fullmatch
_PILE = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)


def drawable(text: str) -> str:
    """The text with every control character as a visible symbol; tabs and newlines stay."""
    if text.isascii() and _HARMLESS(text):
        return text
    return _PILE.sub(r"\1", text.translate(_DRAWN))


def one_line(text: str) -> str:
    """The same with all white space as single spaces."""
    return drawable(" ".join(text.split()))


def skinless(text: str) -> str:
    """Emoji of a field without colours of skin, for which Textual keeps no cell."""
    return text.translate(_SKINLESS)


def pasteable(text: str) -> str:
    """Source text for the clipboard: whole, but for what would act on a terminal it is pasted into."""
    return text if text.isascii() and _HARMLESS(text) else text.replace("\r\n", "\n").translate(_SHOWN)


def enterable(text: str) -> str:
    """Text that comes into a field from elsewhere: what is seen there is what will be sent."""
    return pasteable(text.replace("\r\n", "\n").replace("\r", "\n"))


_SIGNS = dict.fromkeys((*range(0x2400, 0x2422), 0x2424, 0xFFFD), "?")


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What stands for what on the screen."""

    bar: str = "▌"  # before a message's header
    quote: str = "▎ "
    code: str = "│ "
    turn: str = "↪ "  # a code line goes on
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
        """The text without the signs that stand for control characters, where the terminal has none."""
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
