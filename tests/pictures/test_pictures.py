"""Pictures of every screen in three sizes, dark, light and without color, compared line by line.

In each run one size of each dark scene is compared, in turns; `make soak` compares all pictures. Those that
are not dark differ in colors alone.
`make pictures` (UPDATE_PICTURES=1) regenerates them; review the changes in the diff.
"""

import os
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from minichat.ui.picture import picture
from tests.app.conftest import run
from tests.pictures.scenes import MAIN, SITTINGS
from tests.pictures.world import opened

GOLDEN = Path(__file__).parent / "golden"
UPDATE = bool(os.environ.get("UPDATE_PICTURES"))
SIZES = ((80, 24), (120, 40), (200, 60))
SHOWN = 8  # differing lines to show
SOAK = () if UPDATE else (pytest.mark.soak,)


@run
@pytest.mark.parametrize(
    ("look", "sizes"),
    [
        pytest.param("dark", 1, id="dark"),
        *(pytest.param(each, 3, id=f"{each}-all", marks=SOAK) for each in ("dark", "light", "no-color")),
    ],
)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=SOAK if at % 2 else ()) for at, each in enumerate(SITTINGS)]
)
async def test_the_screen_looks_unchanged(
    bench: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    look: str,
    sizes: int,
) -> None:
    """`sizes`: how many of each scene; if it is one, scenes take turns with them."""
    sitting, different = SITTINGS[name], list[str]()
    monkeypatch.delenv("NO_COLOR", raising=False)
    if look == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")
    theme = "minichat-light" if look == "light" else "minichat-dark"
    async with opened(bench, monkeypatch, tmp_path, sitting, theme) as it:
        for at, (scene, play) in enumerate(sitting.scenes.items()):
            all_sizes = SIZES if look == "dark" or scene in MAIN else SIZES[1:2]
            async with play(it):
                for size in all_sizes if sizes > 1 else SIZES[at % 3 :][:1]:
                    await it.resize(size)
                    file = f"{scene}-{size[0]}x{size[1]}-{look}.svg"
                    different += compare(file, picture(it.app, f"{scene}, {look}"), tmp_path)
                await it.resize(SIZES[0])
    assert not different, "\n".join([*different, "", "if this is intended: make pictures"])


def compare(name: str, now: str, folder: Path) -> list[str]:
    """A readable description of the differences."""
    golden = GOLDEN / name
    before = golden.read_text(encoding="utf-8") if golden.exists() else ""
    if now == before:
        return []
    if UPDATE:
        golden.write_text(now, encoding="utf-8")
        return []
    seen = folder / name
    seen.write_text(now, encoding="utf-8")
    return [f"{name} differs from {golden.parent.name}/{name}; the new picture: {seen}", *_lines(before, now)]


def _lines(before: str, now: str) -> Iterator[str]:
    old, new = before.splitlines(), now.splitlines()
    old += [""] * (len(new) - len(old))
    differ = [number for number, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]]
    for number in differ[:SHOWN]:
        texts = [_text(old[number]), _text(new[number])]
        what = texts if texts[0] != texts[1] else [old[number], new[number]]  # otherwise the colors differ
        yield from (
            f"  line {number - 3}: {sign} {each[:300]}" for sign, each in zip("-+", what, strict=True)
        )
    if len(differ) > SHOWN:
        yield f"  and {len(differ) - SHOWN} more lines"


def _text(line: str) -> str:
    """A line of the screen, extracted from its picture."""
    cells = ""
    for x, text in re.findall(r'<tspan x="(\d+)"[^>]*>([^<]*)', line):
        cells = cells.ljust((int(x) - 8) // 8) + unescape(text)
    return cells


@pytest.mark.skipif(UPDATE, reason="they are being taken")
def test_a_difference_is_located(tmp_path: Path) -> None:
    name = "chat-80x24-dark.svg"
    golden = (GOLDEN / name).read_text(encoding="utf-8")
    assert compare(name, golden, tmp_path) == []
    report = compare(name, golden.replace(">Explain paged", ">Explain papal", 1), tmp_path)
    assert len(report) >= 3 and "- " in report[1] and "papal" in report[2]
