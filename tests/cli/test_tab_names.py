"""Tab in `minichat chat --plain`: the names of files after an @."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minichat.completions.tab_names import complete_names, names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Makefile", "README.md", "remake.py", "my plan.md", "docs/grammars.md", "docs/grades.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Read @Mak", ["@Makefile "]),
        ("@docs/gra", ["@docs/grades.md ", "@docs/grammars.md "]),
        ("@doc", ["@docs/"]),
        ("@my", ['@"my plan.md" ']),
        ('@"my pl', ['plan.md" ']),
        ("@plan", ['@"my plan.md" ']),  # the only one that contains it
        ("@ma", []),  # readline would erase what has been typed
        ("@nosuch", []),
        ("Mak", []),
        ("mail me@Mak", []),
    ],
)
def test_names_that_can_follow(line: str, found: list[str]) -> None:
    assert names(line, line.rfind(" ") + 1) == found


@pytest.mark.parametrize("libedit", [False, True])
def test_readline_asks_for_one_after_another(libedit: bool) -> None:
    line, given = "Read @docs/gra and", dict[str, Any]()
    readline: Any = SimpleNamespace(
        __doc__="libedit readline" if libedit else "GNU readline",
        get_line_buffer=lambda: line,
        get_begidx=lambda: 5,
        get_endidx=lambda: 14,
        set_completer_delims=lambda text: given.update(delims=text),
        set_completer=lambda completer: given.update(completer=completer),
        parse_and_bind=lambda text: given.update(bind=text),
    )
    complete_names(readline)
    found = [given["completer"]("@docs/gra", number) for number in range(3)]
    assert found == ["@docs/grades.md ", "@docs/grammars.md ", None]
    assert "\t" in given["delims"] and '"' not in given["delims"]
    assert given["bind"] == ("bind ^I rl_complete" if libedit else "tab: complete")
