"""Checkpoints on a system that cannot map their files."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine.api.errors import BadCheckpoint
from engine.models import checkpoint
from engine.models.checkpoint import TYPES, WIDTHS, headers, opened

TENSORS = {
    "matrix": torch.arange(12, dtype=torch.float32).view(3, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "byte": torch.tensor([[0.5]]).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 3),
}


def forbid_mapping(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(file: Path, framework: str) -> NoReturn:
        raise error

    monkeypatch.setattr(checkpoint, "safe_open", fails)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / checkpoint.SINGLE, {"format": "pt"})
    return tmp_path / checkpoint.SINGLE


def listed(file: Path) -> list[tuple[Any, ...]]:
    return sorted((name, *header) for name, header in headers(file.parent).items())


def test_every_readable_dtype_has_a_width() -> None:
    assert {kind: getattr(torch, name).itemsize for kind, name in TYPES.items()} == dict(WIDTHS)


@pytest.mark.parametrize("error", [MemoryError("Cannot allocate"), RuntimeError("unable to mmap 9 bytes")])
def test_a_file_that_cannot_be_mapped_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    mapped = listed(file)
    forbid_mapping(monkeypatch, error)
    assert listed(file) == mapped
    with opened(file) as tensors:
        read = {name: tensors.get_tensor(name) for name in tensors.keys()}
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].float(), tensor.float())


def written(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


BROKEN = {
    "nothing": b"",
    "a header of ages": b"\xff" * 16,
    "no JSON": written({})[:-1] + b"!",
    "no object": written([]),
    "no offsets": written({"t": {"dtype": "F32", "shape": [2]}}),
    "before the file": written(entry(data_offsets=[-8, 0]), bytes(8)),
    "backwards": written(entry(data_offsets=[8, 0]), bytes(8)),
    "cut short": written(entry(), bytes(7)),
    "another shape": written(entry(shape=[3]), bytes(8)),
    "another kind": written(entry(dtype="I16", shape=[4]), bytes(8)),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    forbid_mapping(monkeypatch, MemoryError())
    file.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=rf"{file} is corrupt or truncated: "), opened(file) as tensors:
        tensors.get_tensor("t")


def test_a_file_that_the_library_refuses_is_not_read(file: Path) -> None:
    file.write_bytes(written(entry(), bytes(7)))
    with pytest.raises(SafetensorError):
        safe_open(file, framework="pt")
    with pytest.raises(BadCheckpoint, match="is corrupt or truncated"), opened(file):
        pass
