"""Checkpoints are written once and loaded once. Each test makes only a new engine around the model."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import engine.assembly
from tests.runner.small import make

_loaded = cache(engine.assembly.load_model)


@pytest.fixture(scope="module", autouse=True)
def load_each_model_once() -> Iterator[None]:
    """Cache loaded models, in these files only: other tests check that a model is released."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.assembly, "load_model", _loaded)
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Return a function that gives the folder of a family's checkpoint, and transformers' model of it."""

    @cache
    def made(family: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(family)
        return folder, make(family, folder)

    return made


@pytest.fixture(scope="session")
def llama(checkpoint: Callable[[str], tuple[Path, Any]]) -> Path:
    return checkpoint("llama")[0]


@pytest.fixture(scope="session")
def drafted(checkpoint: Callable[[str], tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The llama with an exit after its first layer, and another model in its folder as the draft model."""
    folder = tmp_path_factory.mktemp("drafted") / "model"
    shutil.copytree(checkpoint("llama")[0], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "early_exit_layers": [1]}))
    shutil.copytree(checkpoint("qwen2")[0], folder / "draft")
    return folder
