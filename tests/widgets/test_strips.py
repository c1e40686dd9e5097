"""The strips of `minichat.shell.strips` are those of Textual, with caches made when they are needed."""

from rich.segment import Segment
from textual.cache import FIFOCache
from textual.strip import Strip

from minichat.shell import strips
from minichat.ui import frames as frames  # it installs them

LINE = [Segment("one "), Segment("two")]


def test_a_strip_has_all_that_textual_gives_it() -> None:
    theirs, ours = object.__new__(Strip), Strip(LINE, 7)
    strips.plain(theirs, LINE, 7)
    for name in Strip.__slots__:
        expected, found = getattr(theirs, name), getattr(ours, name)
        if isinstance(expected, FIFOCache):
            expected, found = expected._maxsize, found._maxsize
        assert found == expected, name


def test_only_what_is_used_is_made() -> None:
    strip = Strip(LINE)
    assert strip.crop(0, 3) is strip.crop(0, 3)
    made = [name for name in strips.SIZES if name in Strip.__slots__ and _has(strip, name)]
    assert made == ["_crop_cache"]
    assert not hasattr(strip, "no_such_name")


def _has(strip: Strip, name: str) -> bool:
    try:
        return bool(object.__getattribute__(strip, name) is not None)
    except AttributeError:
        return False
