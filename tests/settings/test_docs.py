import tomllib
from pathlib import Path

from engine.api.params import FIELDS
from minichat.settings import load
from minichat.settings.load import SECTIONS
from minichat.settings.sampling import MEANINGS

from .reference import key_rows, rows


def test_every_sampling_parameter_has_a_description() -> None:
    assert tuple(MEANINGS) == FIELDS, "minichat/settings/sampling.py describes each parameter, in this order"


def test_the_settings_reference_matches_the_code(root: Path) -> None:
    lines = (root / "docs" / "settings.md").read_text().partition("## `[keys]`")[0].splitlines()
    documented = [line for line in lines if line.startswith(tuple(f"| `{section}." for section in SECTIONS))]
    assert documented == list(rows()), "docs/settings.md: replace its rows by these:\n" + "\n".join(rows())


def test_every_key_binding_is_in_the_reference(root: Path) -> None:
    lines = (root / "docs" / "settings.md").read_text().splitlines()
    start = lines.index("| binding | its keys | what it does |") + 2
    documented = [line for line in lines[start:] if line.startswith("|")][: len(list(key_rows()))]
    assert documented == list(key_rows()), "docs/settings.md: replace its rows by these:\n" + "\n".join(
        key_rows()
    )


def test_the_examples_are_valid(root: Path, tmp_path: Path) -> None:
    config, presets = [
        part.partition("```")[0]
        for part in (root / "docs" / "settings.md").read_text().split("```toml\n")[1:]
    ]
    file = tmp_path / "config.toml"
    file.write_text(config)
    loaded = load(file)
    assert loaded.problems == []
    assert loaded.settings.screen.theme == "minichat-light"
    assert loaded.settings.keys["view.monitor"] == ("f2", "ctrl+b")
    file.write_text(f"[sampling]\n{presets.partition(']')[2]}")
    assert "my stories" in tomllib.loads(presets)
    assert load(file).problems == []
