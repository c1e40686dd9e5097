"""The number of threads a model is loaded and run with on a CPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine import assembly
from engine.api.config import EngineConfig
from engine.start import start


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def threads(monkeypatch: pytest.MonkeyPatch, **config: Any) -> tuple[int, int]:
    """Return the number of threads during loading and after it."""
    seen, load = [], assembly.load_model

    def counted_load(*args: Any, **more: Any) -> Any:
        seen.append(torch.get_num_threads())
        return load(*args, **more)

    monkeypatch.setattr(assembly, "load_model", counted_load)
    start(EngineConfig(model="pocket", device="cpu", blocks=8, **config))
    return seen[0], torch.get_num_threads()


@pytest.mark.parametrize("dummy", [False, True])
def test_a_small_model_gets_one_thread_and_a_large_one_all(
    monkeypatch: pytest.MonkeyPatch, dummy: bool
) -> None:
    monkeypatch.setattr(assembly, "ALL_THREADS", 3)
    torch.set_num_threads(3)
    assert threads(monkeypatch, dummy_weights=dummy) == (3 if dummy else 1, 1)
    monkeypatch.setattr(assembly, "ONE_THREAD", 0)
    assert threads(monkeypatch, dummy_weights=dummy) == (3, 3)


def test_the_configured_number_applies_to_loading_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    assert threads(monkeypatch, threads=2) == (2, 2)
