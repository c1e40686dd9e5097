"""Cases of a test: several in one, where each would have to start a program, and those of `make soak`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def case(name: object) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {name!r}")
        raise


def soak(*cases: Any) -> list[Any]:
    """Mark cases as soak tests. A tuple is a case of several arguments."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.soak)
        for each in cases
    ]


def one_of(count: int, cases: Iterable[Any]) -> list[Any]:
    """Every `count`-th case; the others are soak tests. For many similar cases."""
    return [
        each if at % count == 0 else pytest.param(each, marks=pytest.mark.soak)
        for at, each in enumerate(cases)
    ]


def one_row_of(count: int, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The same, for a test with several parameters."""
    return [each if at % count == 0 else soak(each)[0] for at, each in enumerate(rows)]


SIZES = [(80, 24), *soak(((120, 40),), ((200, 60),))]  # terminals, for what should look alike on all of them
