"""A model's identity changes with its files, its code and the settings, and with nothing else."""

import os
from pathlib import Path

import pytest

from engine.api.config import ModelPlace
from engine.models import identity
from engine.models.identity import files_hash, files_stamp, model_identity
from engine.models.registry import load_model
from tests.runner.small import make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"a": 1}')
    (made / "model.safetensors").write_bytes(os.urandom(1000))
    return made


def hashed(folder: Path, *, weights: bool = True) -> bytes:
    return files_hash(folder, weights=weights, memo=folder.parent / "kv" / "hashes.json")


def test_the_same_files_elsewhere_have_the_same_hash(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in folder.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
    assert hashed(copy) == hashed(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_changed_file_changes_it(folder: Path, name: str) -> None:
    before = hashed(folder)
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    assert hashed(folder) != before


def test_a_stamp_changes_with_a_file_which_is_not_read(folder: Path) -> None:
    before = files_stamp(folder, weights=True)
    (folder / "config.json").chmod(0)
    assert files_stamp(folder, weights=True) == before
    assert files_stamp(folder, weights=False) != before
    (folder / "model.safetensors").write_bytes(b"shorter")
    assert files_stamp(folder, weights=True) != before


def test_pieces_of_a_file_are_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "PIECE", 100)
    before = hashed(folder)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[100:200] + data[:100] + data[200:])
    assert hashed(folder) != before


def test_random_weights_are_named_by_their_configuration(folder: Path) -> None:
    before = hashed(folder, weights=False)
    (folder / "model.safetensors").unlink()
    assert hashed(folder, weights=False) == before


@pytest.mark.parametrize("memo", [None, b"", b"[1]", b"\xff{"])
def test_files_are_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch, memo: bytes | None) -> None:
    place = folder.parent / "kv" / "hashes.json"
    if memo is not None:
        place.parent.mkdir()
        place.write_bytes(memo)
    before = hashed(folder)

    def again(file: Path) -> str:
        raise AssertionError(f"{file} is hashed again")

    monkeypatch.setattr(identity, "file_hash", again)
    assert hashed(folder) == before
    assert [each.name for each in place.parent.iterdir()] == ["hashes.json"]
    assert place.stat().st_mode & 0o777 == 0o600


def test_settings_and_code_are_part_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make("llama", tmp_path)
    model = load_model(ModelPlace("small", tmp_path))
    one = model_identity(b"files", model, "cpu", 16)
    assert model_identity(b"files", model, "cpu", 16) == one
    assert (
        len({one, model_identity(b"other", model, "cpu", 16), model_identity(b"files", model, "cpu", 32)})
        == 3
    )
    read = Path.read_bytes
    changed = "part.py"
    monkeypatch.setattr(Path, "read_bytes", lambda file: read(file) + b" " * (file.name == changed))
    assert model_identity(b"files", model, "cpu", 16) != one
