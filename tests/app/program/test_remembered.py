"""The file of choices that the program remembers: a damaged one is reported and kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minichat.shell.remembered import Remembered
from tests.app.conftest import run


@run
async def test_a_damaged_file_of_choices_is_reported_once(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        file = it.app.paths.remembered
    file.write_text("{")
    async with bench() as it:
        await it.until(lambda: it.notices())
        (notice,) = it.notices()
        assert notice.startswith(f"{file} was damaged: it was renamed to remembered.damaged-")
    async with bench() as it:
        assert not it.notices()


def test_a_damaged_state_file_is_kept_under_another_name(tmp_path: Path) -> None:
    file = tmp_path / "state" / "remembered.json"
    for text in ("", "[]", '{"models": 3, "theme": []}', '{"models": ["a", 3]}'):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        assert Remembered.read(file) in (Remembered(), Remembered(("a",)))
        kept, (problem,) = Remembered.opened(file)
        (aside,) = file.parent.glob("remembered.damaged-*.json")
        assert aside.name in problem and aside.read_text() == text
        assert Remembered.opened(file) == (kept, ()), "the next start has nothing to say"
        aside.unlink()
    kept = Remembered()
    for number in range(20):
        kept = kept.used(f"m{number % 10}")
    kept.write(file)
    assert Remembered.read(file).models == tuple(f"m{number}" for number in range(9, 1, -1))
    file.unlink()
    file.mkdir()  # nothing can be written there
    kept.write(file)
    assert [*file.parent.iterdir()] == [file], "a failed write leaves no other file"
