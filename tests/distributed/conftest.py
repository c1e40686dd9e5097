"""Two ranks of a small model, started once for each file that needs them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import timeline
from engine.serving.engine import Engine
from tests.runner.conftest import checkpoint, drafted, llama
from tests.runner.rows.test_speculation import always_draft
from tests.runner.small import engine_on

__all__ = ["checkpoint", "drafted", "llama"]  # fixtures

CONFIG = {"blocks": 6, "host_blocks": 6, "max_running": 6, "max_step_tokens": 20, "preemption": "swap"}


@pytest.fixture(scope="module")
def two(drafted: Path) -> Iterator[Engine]:
    """An engine of two ranks, with both kinds of draft models and hardly any room."""
    timeline.others.clear()  # engines of other tests may have filled it
    engine = always_draft(engine_on(drafted, tp=2, **CONFIG))
    yield engine
    engine.ranks.close()
