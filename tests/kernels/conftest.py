"""One interpreter for all kernels: it takes seconds to start."""

from collections.abc import Iterator

import pytest

from tests.kernels.interpreted import Interpreted, interpreter


@pytest.fixture(scope="session")
def kernels() -> Iterator[Interpreted]:
    with interpreter() as started:
        yield started
