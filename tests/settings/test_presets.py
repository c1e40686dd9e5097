import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import Grammar, SamplingParams
from minichat.settings.presets import SHIPPED, PresetError, delete_preset, load_presets, save_preset


def usable(name: str) -> bool:
    return name.isprintable() and name.strip() == name and name not in ("own", "default")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "minichat" / "presets.toml"


def test_without_a_file_the_built_in_presets_exist(file: Path) -> None:
    presets = load_presets(file)
    assert (presets.all, presets.own, presets.problems) == (SHIPPED, {}, [])
    assert presets.all["greedy"].greedy


def test_saved_presets_come_first_and_the_others_remain(file: Path) -> None:
    mine = SamplingParams(
        temperature=1e-05,
        stop=('"quoted"\n', "ü\x7f"),
        logit_bias=((3, -1.0),),
        seed=2**63,
        grammar=Grammar("regex", "a+"),
    )
    save_preset(file, "my own", mine)
    save_preset(file, "greedy", SamplingParams(top_k=1))
    presets = load_presets(file)
    assert presets.own == {"my own": mine, "greedy": SamplingParams(top_k=1)}
    assert list(presets.all) == ["my own", "greedy", "precise", "balanced", "creative"]
    assert presets.all["greedy"].top_k == 1
    save_preset(file, "my own", SamplingParams())
    assert load_presets(file).own["my own"] == SamplingParams()
    assert [entry.name for entry in file.parent.iterdir()] == ["presets.toml"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_after_deletion_the_built_in_preset_returns(file: Path) -> None:
    save_preset(file, "greedy", SamplingParams(top_k=1))
    delete_preset(file, "greedy")
    assert load_presets(file).all == SHIPPED
    with pytest.raises(PresetError, match="no saved preset 'greedy'"):
        delete_preset(file, "greedy")


@pytest.mark.parametrize("name", ["own", "default"])
def test_names_that_the_drawer_uses_itself_are_refused(file: Path, name: str) -> None:
    with pytest.raises(PresetError, match=f"'{name}' is what .* called; choose another name"):
        save_preset(file, name, SamplingParams(top_p=0.5))
    file.parent.mkdir()
    file.write_text(f"[{name}]\ntop_p = 0.5\n")
    presets = load_presets(file)
    assert presets.own == {} and "must have another name" in str(presets.problems[0])


@given(name=st.text(min_size=1, max_size=40).filter(usable))
def test_any_printable_name_is_accepted(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("presets") / "presets.toml"
    save_preset(file, name, SamplingParams(top_p=0.5))
    assert load_presets(file).own == {name: SamplingParams(top_p=0.5)}


@pytest.mark.parametrize("name", ["", "  ", "x" * 41, "two\nlines"])
def test_an_unprintable_name_is_refused(file: Path, name: str) -> None:
    with pytest.raises(PresetError, match="1 to 40 printable characters"):
        save_preset(file, name, SamplingParams())
    assert not file.exists()


def test_a_file_with_errors_is_not_overwritten(file: Path) -> None:
    file.parent.mkdir()
    text = "[mine]\ntop_p = 0.5\ntemprature = 1\n"
    file.write_text(text)
    presets = load_presets(file)
    assert [str(problem) for problem in presets.problems] == [
        f"{file}:3: mine.temprature: is unknown; did you mean temperature?"
    ]
    assert presets.own == {"mine": SamplingParams(top_p=0.5)}
    with pytest.raises(PresetError, match=r"fix this first.*:3: mine\.temprature"):
        save_preset(file, "more", SamplingParams())
    assert file.read_text() == text


def test_a_value_in_place_of_a_table_is_reported(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("mine = 1")
    assert "mine: must be a table" in str(load_presets(file).problems[0])


def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PresetError, match="cannot "):
        save_preset(tmp_path / "file" / "presets.toml", "mine", SamplingParams())


def test_presets_of_the_first_edition_are_read() -> None:
    presets = load_presets(Path(__file__).with_name("first_edition_presets.toml"))
    assert presets.problems == []
    assert presets.own == {
        "story": SamplingParams(temperature=1.1, top_p=0.95, repetition_penalty=1.1),
        "beams": SamplingParams(temperature=0.0, beams=4, length_penalty=1.2),
    }
