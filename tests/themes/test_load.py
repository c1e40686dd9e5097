import os
import shutil
from pathlib import Path

import pytest

from minichat.shell import themes
from minichat.shell.themes import OKABE_ITO, Watch, load_themes, shipped_themes

GOOD = """\
name = "mine"
dark = true

[colours]
primary = "#6CB6FF"
secondary = "#8FA9C4"
accent = "orange"
foreground = "#DCE3EA"
background = "#101418"
surface = "#171C22"
panel = "#202730"
success = "#63C88B"
warning = "#EBC04A"
error = "rgb(255,130,120)"

[map]
free = "#262E37"
cached = "#44515E"
"""


def problems(folder: Path, text: str) -> list[str]:
    """The problems reported for a theme file with this text, without its folder."""
    file = folder / "mine.toml"
    file.write_text(text)
    return [str(problem).removeprefix(f"{folder}/") for problem in load_themes(folder).problems]


def test_missing_colors_are_derived_from_others(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD) == []
    mine = load_themes(tmp_path).palettes["mine"]
    assert mine.owners == OKABE_ITO
    assert mine.owner(25) == OKABE_ITO[1] != mine.owner(9)
    variables = mine.own_variables()
    assert variables["syntax-keyword"] == "orange"
    assert variables["syntax-comment"] == mine.muted
    assert (variables["owner-1"], variables["map-cached"]) == (OKABE_ITO[0], "#44515E")
    assert mine.theme().variables["text-muted"] == mine.muted


def test_given_colors_are_used(tmp_path: Path) -> None:
    variables = 'border = "#335577 40%"\ntext = "auto 90%"\nlink-style = "not underline"\n'
    assert problems(tmp_path, f'{GOOD}[syntax]\nkeyword = "red"\n[variables]\n{variables}') == []
    mine = load_themes(tmp_path).palettes["mine"]
    assert mine.own_variables()["syntax-keyword"] == "red"
    assert mine.theme().to_color_system().generate()["border"] == "#335577 40%"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "mine"', "", "mine.toml: name: is required: a nonempty text"),
        ('name = "mine"', "name = 3", "mine.toml:1: name: is required"),
        ("dark = true", 'dark = "yes"', "mine.toml:2: dark: must be true, or false for"),
        ("dark = true", "dark = true\nabout = 1", "mine.toml:3: about: must be a text, got 1"),
        ("dark = true", "dark = true\nauthor = 1", "mine.toml:3: author: is unknown"),
        (
            '"#6CB6FF"',
            '"#6CB6F"',
            'mine.toml:5: colours.primary: must be a color like "#88aaff" or "ansi_blue"',
        ),
        ('"orange"', '"ornage"', 'got "ornage"; did you mean orange?'),
        ('"orange"', "7", "mine.toml:7: colours.accent: must be a color"),
        ("primary =", "primry =", "mine.toml:5: colours.primry: is unknown; did you mean primary?"),
        ('panel = "#202730"\n', "", "mine.toml:4: colours: must also set panel"),
        ('cached = "#44515E"', "", "mine.toml:16: map: must also set cached"),
        (
            "dark = true",
            'dark = true\nowners = ["red"]',
            "mine.toml:3: owners: must be a list of at least 8",
        ),
        (
            "dark = true",
            f"dark = true\nowners = {['red'] * 7 + ['rde']}",
            "mine.toml:3: owners: color 8 must be",
        ),
        (
            "[map]",
            '[variables]\nbordr = "red"\n[map]',
            "variables.bordr: is unknown; did you mean border?",
        ),
        ("[map]", '[variables]\nborder = "bad 4%"\n[map]', "variables.border: must be a color like"),
        (
            "[map]",
            '[variables]\nlink-style = "loud"\n[map]',
            "variables.link-style: must be words like bold or none",
        ),
        ("[map]", "[map", "mine.toml:16: Expected"),
    ],
)
def test_an_error_is_reported_with_its_line(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new))
    assert any(sentence in each for each in found), found
    assert load_themes(tmp_path).palettes == {}


def test_a_section_that_is_no_table_is_reported(tmp_path: Path) -> None:
    assert "mine.toml:1: map: must be a table: write [map] above its keys" in problems(
        tmp_path, "map = 1\n" + GOOD.partition("[map]")[0]
    )


def test_a_later_folder_takes_precedence_and_a_broken_theme_hides_none(tmp_path: Path) -> None:
    mine = GOOD.replace('"mine"', '"minichat-dark"').replace('"orange"', '"#123456"')
    (tmp_path / "dark.toml").write_text(mine)
    (tmp_path / "light.toml").write_text('name = "minichat-light"')
    found = load_themes(shipped_themes(), tmp_path, tmp_path / "none")
    assert found.palettes["minichat-dark"].colors["accent"] == "#123456"
    assert found.palettes["minichat-light"].dark is False
    assert {problem.file.name for problem in found.problems} == {"light.toml"}


def test_two_files_with_the_same_name_are_reported(tmp_path: Path) -> None:
    """As after a copy of a file. The first file is used."""
    (tmp_path / "copy.toml").write_text(GOOD.replace('"orange"', '"#123456"'))
    assert problems(tmp_path, GOOD) == ["mine.toml:1: name: is also the name in copy.toml; choose another"]
    assert load_themes(tmp_path).palettes["mine"].colors["accent"] == "#123456"


def test_an_unreadable_folder_has_no_themes(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)  # stands for another user's folder, since root can read everything
    assert load_themes(folder).palettes == {}
    assert not Watch(folder).changed()


def test_a_change_in_the_folder_is_detected(tmp_path: Path) -> None:
    folder = tmp_path / "themes"
    watch = Watch(folder)
    assert not watch.changed()
    folder.mkdir()
    file = folder / "mine.toml"
    file.write_text(GOOD)
    assert (watch.changed(), watch.changed()) == (True, False)
    os.utime(file, ns=(1, 1))
    assert (watch.changed(), watch.changed()) == (True, False)
    (folder / "notes.txt").touch()
    assert not watch.changed()
    file.unlink()
    assert watch.changed()


def test_the_shipped_themes_are_found_in_a_checkout_and_when_installed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped_themes() == root / "themes"
    package = tmp_path / "site" / "minichat"
    (package / "themes").mkdir(parents=True)
    monkeypatch.setattr(themes, "__file__", str(package / "shell" / "themes.py"))
    assert shipped_themes() == package / "themes"


def test_a_theme_of_the_first_edition_is_read(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("first_edition.toml"), tmp_path)
    found = load_themes(tmp_path)
    assert found.problems == []
    assert (found.palettes["mine"].dark, found.palettes["mine"].colors["background"]) == (True, "#140D00")
