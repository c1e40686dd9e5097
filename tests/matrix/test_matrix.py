"""docs/models.md says what becomes of each architecture of transformers; every family's row is checked."""

from pathlib import Path

import pytest

from engine.models.families import FAMILIES
from tests.matrix.__main__ import recorded
from tests.matrix.check import check
from tests.matrix.small import MODEL_TYPES


@pytest.fixture(scope="session")
def page(root: Path) -> dict[str, str]:
    return recorded((root / "docs" / "models.md").read_text(encoding="utf-8"))


def test_every_architecture_and_family_is_listed(page: dict[str, str]) -> None:
    assert sorted(page) == sorted(MODEL_TYPES)
    assert {name for name, status in page.items() if status == "native"} == FAMILIES.keys()


@pytest.mark.soak
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_architecture_runs_as_listed(model_type: str, page: dict[str, str]) -> None:
    """In one forward, and alone, batched, chunked, preempted, swapped, from the prefix cache and forked."""
    found = check(model_type)
    assert found.status == page[model_type], found.why
