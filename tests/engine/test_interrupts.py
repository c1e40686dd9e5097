"""Ctrl+C while modules are imported."""

import signal
from contextlib import suppress

import pytest

from engine.interrupts import interrupts_kept


def lose_interrupt(error: type[Exception]) -> None:
    """What a module in C does that imports others."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise error("cannot import datetime") from None


def test_an_interrupt_that_became_an_import_error_stays_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        lose_interrupt(ImportError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_was_suppressed_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_kept(), suppress(ImportError):
        lose_interrupt(ImportError)


def test_an_error_without_an_interrupt_stays_itself() -> None:
    with pytest.raises(ImportError), interrupts_kept():
        raise ImportError
