"""Several cases in one test, where each would have to start a program: a failure names its case."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {name!r}")
        raise
