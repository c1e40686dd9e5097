"""Engines that replace each other in the process of the tests."""

import gc
from types import SimpleNamespace

import pytest

from minichat.clients import local


@pytest.fixture(autouse=True)
def _shared_objects_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each switch, what all tests share would be traversed: 0.1 to 0.4 s."""
    monkeypatch.setattr(local, "gc", SimpleNamespace(collect=gc.collect, unfreeze=lambda: None))
