"""A chat is exported to a file, whose extension selects the format."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from tests.app.conftest import run


async def export_to(it: Any, file: Path) -> None:
    await it.command("chat.export")
    await it.until(lambda: it.app.screen.query(Input))
    it.app.screen.query_one(Input).value = str(file)
    await it.pilot.press("enter")


@run
@pytest.mark.parametrize("ending", ["md", "json"])
async def test_export(bench: Callable[..., Any], tmp_path: Path, ending: str) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        await it.pilot.press("ctrl+p", *"export", "enter")
        await it.until(lambda: it.app.screen.query("Input"))
        it.app.screen.query_one("Input").value = str(tmp_path / f"out.{ending}")
        await it.pilot.press("enter")
        await it.until(lambda: (tmp_path / f"out.{ending}").exists())
        assert "good day" in (tmp_path / f"out.{ending}").read_text()


@run
async def test_an_export_overwrites_nothing(bench: Callable[..., Any], tmp_path: Path) -> None:
    mine = tmp_path / "notes.md"
    mine.write_text("mine")
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        for offered in ("hello.md", "hello-2.md", "hello-3.md"):
            await it.command("chat.export")
            await it.until(lambda: it.app.screen.query("Input"))
            assert it.app.screen.query_one("Input").value == str(it.app.paths.exports / offered)
            await it.pilot.press("enter")
            await it.until((it.app.paths.exports / offered).exists)
        await it.command("chat.export")
        await it.until(lambda: it.app.screen.query("Input"))
        it.app.screen.query_one("Input").value = str(mine)
        await it.pilot.press("enter")
        await it.until(lambda: any("already exists" in notice for notice in it.notices()))
        assert mine.read_text() == "mine"


@run
async def test_the_name_offered_for_an_export_is_not_too_long(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.chats.active.rename("\U00020000" * 300)  # four bytes each
        await it.command("chat.export")
        await it.until(lambda: it.app.screen.query("Input"))
        await it.pilot.press("enter")
        await it.until(lambda: list(it.app.paths.exports.glob("*.md")) or it.notices())
        assert list(it.app.paths.exports.glob("*.md")), it.notices()


@run
async def test_an_export_that_cannot_be_written_is_reported(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    async with bench() as it:
        await it.command("chat.export")
        await it.pilot.pause()
        it.app.screen.query_one("Input").value = str(tmp_path / "no" / "folder.md")
        await it.pilot.press("enter")
        await it.until(lambda: any("folder.md" in notice for notice in it.notices()))


@run
async def test_a_failed_export_leaves_nothing_and_can_be_repeated(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    write, full = Path.write_text, True

    def writing(file: Path, text: str, **more: Any) -> int:
        if full and file.parent == folder:
            write(file, text[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, text, **more)

    monkeypatch.setattr(Path, "write_text", writing)
    async with bench(shows_notices=True) as it:
        await it.answered(await it.say("hello"), "good day")
        await export_to(it, folder / "out.md")
        await it.until(lambda: "No space left" in it.screen_text())
        assert list(folder.iterdir()) == []
        full = False
        await it.pilot.press("enter")
        await it.until((folder / "out.md").exists)
        await it.until(lambda: "Exported to" in it.screen_text())
        assert "No space left" not in it.screen_text(), "the notice of the refusal has ended"
        assert [each.name for each in folder.iterdir()] == ["out.md"]
        assert "good day" in (folder / "out.md").read_text()


@run
async def test_nothing_is_exported_into_a_pipe(bench: Callable[..., Any], tmp_path: Path) -> None:
    """Opening one waits until another program reads it."""
    os.mkfifo(tmp_path / "pipe.md")
    long = tmp_path / f"{'x' * 300}.md"
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await export_to(it, tmp_path / "pipe.md")
        await it.until(lambda: any("pipe.md already exists" in each for each in it.notices()))
        await it.pilot.press("escape")
        await export_to(it, long)
        await it.until(lambda: any(f"Cannot write {long}: File name too" in each for each in it.notices()))


@run
@pytest.mark.parametrize("name", ["notes.txt", "notes"])
async def test_a_file_of_an_unknown_format_is_refused(
    bench: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    """The name stays in the dialog, with the cursor at its end, to be corrected."""
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        await export_to(it, tmp_path / name)
        formats = "the name must end in .md (Markdown) or .json"
        await it.until(lambda: f"Cannot export to {tmp_path / name}: {formats}" in it.notices())
        await it.until(lambda: it.app.screen.query(Input))
        await it.pilot.press(*".JSON", "enter")
        await it.until((tmp_path / f"{name}.JSON").exists)
        assert (tmp_path / f"{name}.JSON").read_text().startswith("{")
        assert not (tmp_path / name).exists()
