"""Here models change while engines run: none of them may be another test's."""

import pytest

import engine.assembly
from engine.models.registry import load_model


@pytest.fixture(autouse=True)
def every_engine_loads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere engines share them, and the same process may have run tests of there before."""
    monkeypatch.setattr(engine.assembly, "load_model", load_model)
