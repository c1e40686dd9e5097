"""Models in several GGUF files, as the package gguf splits them: the same model, or refused by name."""

import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.api.errors import BadCheckpoint, BadInput
from engine.gguf.header import read_header
from engine.models.decoder import Decoder
from engine.models.find import find_model
from engine.models.gguf.loss import weight_loss
from engine.models.identity import files_hash
from engine.models.registry import load_model
from engine.models.support import support
from engine.text.tokenizer import Tokenizer
from minichat.commands.serve import served_names
from minichat.models.catalog import identity, sources
from tests.models.gguf.ggufs import gguf
from tests.models.gguf.test_hostile import opened, write
from tests.models.tiny import plain_attend

COUNT = 4
NAMES = [f"tiny-{number:05}-of-{COUNT:05}.gguf" for number in range(1, COUNT + 1)]


def split(folder: Path, name: str = "tiny", **more: Any) -> list[Path]:
    """Write a model of 11 tensors in four files."""
    folder.mkdir(exist_ok=True)
    write(folder / f"{name}.gguf", split_max_tensors=3, **more)
    return sorted(folder.glob(f"{name}-*.gguf"))


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    found = split(tmp_path)
    assert [each.name for each in found] == NAMES
    return found


def logits(file: Path) -> torch.Tensor:
    model, ids = load_model(find_model(str(file))), torch.arange(3, 20)
    assert isinstance(model, Decoder)
    with torch.inference_mode():
        attend = plain_attend(model.config.layers)
        return model.logits(model.forward(ids, torch.arange(len(ids)), attend))


def test_the_parts_are_one_model(parts: list[Path], tmp_path: Path) -> None:
    """Whichever is specified."""
    whole = write(tmp_path / "whole.gguf")
    expected = logits(whole)
    for part in (parts[0], parts[2]):
        place = find_model(str(part))
        assert (place.name, place.folder) == ("tiny", parts[0])
        assert torch.equal(logits(part), expected)
        assert Tokenizer.load(part).encode_raw("ab") == [0, 4]
    read = read_header(parts[0])
    assert read.parts == tuple(parts) and read.tensors.keys() == read_header(whole).tensors.keys()
    assert {span.part for span in read.tensors.values()} == {0, 1, 2, 3}
    assert support(parts[0]).bytes == sum(each.stat().st_size for each in parts)
    assert not support(parts[0]).trouble
    model = load_model(find_model(str(whole)))
    assert isinstance(model, Decoder)
    losses = [weight_loss(model.blocks[0], file, torch.bfloat16) for file in (whole, parts[0])]
    assert losses[0] == losses[1] and losses[0] is not None and losses[0] < 0.01


def test_the_catalog_lists_it_once(parts: list[Path], tmp_path: Path) -> None:
    write(tmp_path / "other.gguf")
    found = [model.name for each in sources([str(tmp_path)], []) for model in each()]
    assert [name for name in found if name.startswith(str(tmp_path))] == [
        str(tmp_path / "other.gguf"),
        str(parts[0]),
    ]
    assert identity(str(parts[3])) == str(parts[0])


def test_it_is_served_under_its_own_name(parts: list[Path]) -> None:
    assert served_names(Namespace(model=str(parts[1]), served_name=None)) == ["tiny"]


def test_every_part_counts_for_what_is_kept_on_disk(parts: list[Path], tmp_path: Path) -> None:
    memo = tmp_path / "memo.json"
    before = files_hash(parts[0], weights=True, memo=memo)
    changed = bytearray(parts[3].read_bytes())
    changed[-1] ^= 1
    parts[3].write_bytes(changed)
    assert files_hash(parts[0], weights=True, memo=memo) != before


def test_a_part_that_changes_after_the_load_is_noticed(parts: list[Path]) -> None:
    model = load_model(find_model(str(parts[0])))
    assert isinstance(model, Decoder)
    model.source.check()
    parts[2].write_bytes(parts[2].read_bytes() + b"more")
    with pytest.raises(BadInput, match=f"{NAMES[2]} was removed or changed since it was loaded"):
        model.source.check()


def extra(name: str) -> dict[str, Any]:
    return {name: (np.ones(32, np.float32), "F32")}


CASES: dict[str, tuple[Callable[[list[Path]], object], str]] = {
    "missing": (lambda parts: parts[2].unlink(), f"{NAMES[2]}, one of the model's 4 parts, cannot be read"),
    "first missing": (lambda parts: parts[0].unlink(), f"{NAMES[0]} cannot be read: No such"),
    "twice": (lambda parts: shutil.copy(parts[1], parts[2]), f"{NAMES[2]}: split.no is 1, and 2 by its name"),
    "of fewer": (
        lambda parts: shutil.copy(split(parts[0].parent / "other", **extra("a.weight"))[1], parts[1]),
        f"{NAMES[1]} and {NAMES[0]} are parts of different models: split.tensors.count is 12 and 11",
    ),
    "truncated": (lambda parts: parts[3].write_bytes(parts[3].read_bytes()[:-1]), "it may be truncated"),
    "empty": (lambda parts: parts[3].write_bytes(b""), f"{NAMES[3]} is empty, not a GGUF file"),
    "whole": (
        lambda parts: write(parts[1]),
        f"{NAMES[1]}: split.no is None, and 1 by its name",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_broken_parts_are_named(case: str, parts: list[Path]) -> None:
    change, problem = CASES[case]
    change(parts)
    assert problem in opened(parts[0] if parts[0].exists() else parts[1])


@pytest.mark.parametrize("name", ["tiny.gguf", "tiny-00001-of-00003.gguf", "tiny-1-of-4.gguf"])
def test_a_part_under_another_name_is_refused(name: str, parts: list[Path], tmp_path: Path) -> None:
    file = shutil.copy(parts[0], tmp_path / "apart" / name) if (tmp_path / "apart").mkdir() is None else None
    with pytest.raises(
        BadCheckpoint, match=f"{name} is one of 4 parts of a model, so its name must end with"
    ):
        read_header(Path(str(file)))


@pytest.mark.parametrize("count", [-1, 65536, "4", 4.0])
def test_a_hostile_number_of_parts_is_refused(count: Any, tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        kinds = gguf.GGUFValueType
        kind = {int: kinds.INT64, str: kinds.STRING, float: kinds.FLOAT32}[type(count)]
        writer.add_key_value("split.count", count, kind)

    with pytest.raises(BadCheckpoint, match=r"split\.count is|is one of 65536 parts"):
        read_header(write(tmp_path / "tiny-00001-of-00004.gguf", change))
