"""Mentions of files, or of files in folders, that do not exist."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets._toast import Toast

from minichat.session.attachments import CannotAttach, Missing, attach, missing
from tests.app.conftest import run


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in ("src/deep/tool.py", "src/main.py", "tests/it.py", "my papers/plan.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "form").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("scr/main", "src/main.py"),
        ("scr/main.py", "src/main.py"),
        ("scr/mian.py", "src/main.py"),
        ("scr/gone", "src/"),
        ("scr/", "src/"),
        ("test/it.py", "tests/it.py"),
        ("src/deeep/tool", "src/deep/tool.py"),
        ("scr/deeep/tool", "src/deep/tool.py"),
        ("./scr/main", "./src/main.py"),
        ("my_papers/plan", '"my papers/plan.md"'),
    ],
)
def test_a_folder_of_almost_that_name_is_offered(name: str, near: str) -> None:
    assert missing(f"sum up @{name}, please") == (Missing(name, near),)


def test_a_folder_below_an_absolute_path_is_offered(place: Path) -> None:
    with pytest.raises(CannotAttach, match=f"did you mean {place}/src/main.py"):
        attach(f"@{place}/scr/main.py")


@pytest.mark.parametrize("name", ["types/node", "w/gone", "from/main", "scr", "form/main"])
def test_other_words_with_a_slash_stay_text(name: str) -> None:
    assert missing(f"import @{name}") == attach(f"import @{name}") == ()


@run
async def test_a_file_that_was_made_meanwhile_is_no_longer_missing(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.main.prompt.put("see @./later.txt now")
        await it.until(lambda: "no such file: ./later.txt" in it.screen_text())
        Path("later.txt").write_text("here")
        it.app.on_app_focus()
        await it.until(lambda: "no such file" not in it.screen_text())


@run
async def test_that_a_file_is_missing_is_no_longer_said_of_a_corrected_name(
    bench: Callable[..., Any],
) -> None:
    async with bench((120, 30), shows_notices=True) as it:
        it.main.prompt.put("see @./form.txt")
        await it.pilot.press("enter")
        await it.until(lambda: it.app.screen.query(Toast) and it.main.prompt.text == "see @./form.txt")
        await it.pilot.press(*["backspace"] * 4)
        await it.until(lambda: not it.app.screen.query(Toast))
