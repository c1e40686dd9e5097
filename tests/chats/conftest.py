from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from minichat.chats.store import Store

Opener = Callable[[], Store]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "minichat" / "chats.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Opener]:
    """Open the store at the path, any number of times, with one clock that advances a second per reading."""
    ticks = count(1_800_000_000)
    stores: list[Store] = []

    def another() -> Store:
        stores.append(Store(path, clock=lambda: float(next(ticks))))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Opener) -> Store:
    return opened()
