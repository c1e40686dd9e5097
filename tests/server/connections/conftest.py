"""A server for random input, which must not log anything."""

import logging
from collections.abc import Iterator

import pytest

from tests.server.conftest import Served, dry, serving


class _Keeping(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Served]:
    log = _Keeping()
    logging.getLogger().addHandler(log)
    with serving(dry()) as one:
        one.server.config.timeout_keep_alive = 0.2  # type: ignore[assignment]
        yield one
    logging.getLogger().removeHandler(log)
    assert log.lines == [], "clients could fill the disk with log lines"
