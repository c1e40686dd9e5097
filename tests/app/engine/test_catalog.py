"""Models are found beside files and folders that cannot be examined."""

import os
from pathlib import Path
from typing import Any

import pytest

from minichat.models.catalog import local, sources
from tests.app.engine.test_models import folder


def test_an_entry_that_cannot_be_examined_hides_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    good, closed = folder(tmp_path / "good"), folder(tmp_path / "closed")
    stat = os.stat

    def refuse(path: Any, **more: Any) -> Any:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **more)

    monkeypatch.setattr(os, "stat", refuse)
    _, in_folder, *_ = sources([str(tmp_path)], [])
    assert [model.name for model in in_folder()] == [str(good)]


def test_a_current_folder_that_was_deleted_holds_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert [model.name for source in sources([], [])[:2] for model in source()] == ["pocket"]
    assert local("anything") == local("./anything") == []
