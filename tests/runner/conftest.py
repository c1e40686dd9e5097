"""Checkpoints are made once, and loaded once: only the engine around a model is new in each test."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import engine.assembly
from tests.runner.small import make

_loaded = cache(engine.assembly.load_model)


@pytest.fixture(scope="module", autouse=True)
def models_are_loaded_once() -> Iterator[None]:
    """In these files alone: others test that a model goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.assembly, "load_model", _loaded)
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A folder of a family, and transformers' model of it."""

    @cache
    def made(family: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(family)
        return folder, make(family, folder)

    return made


@pytest.fixture(scope="session")
def llama(checkpoint: Callable[[str], tuple[Path, Any]]) -> Path:
    return checkpoint("llama")[0]
