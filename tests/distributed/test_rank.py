"""How the process of a rank begins: what takes seconds runs at once, before its configuration is there."""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from engine import early
from engine.distributed.rank import begin


def test_the_gpus_context_is_created_while_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()

    def prepare_gpu(device: str) -> Callable[[], None]:
        order.append(f"context on {device}")
        return lambda: order.append("waited")

    setup = SimpleNamespace(connect=lambda given: order.append(f"connect rank {given['rank']}"))
    monkeypatch.setattr(early, "prepare_gpu", prepare_gpu)
    monkeypatch.setattr(early, "import_torch", lambda: order.append("torch"))
    monkeypatch.setitem(sys.modules, "engine.distributed.setup", setup)
    begin({"rank": 1, "device": "cuda:1"})
    assert order == ["context on cuda:1", "torch", "waited", "connect rank 1"]
