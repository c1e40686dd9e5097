"""Coroutine tests, and a terminal with true colors unless a test sets another."""

import inspect

import pytest

from tests import impatient


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    expected = inspect.signature(pyfuncitem.obj).parameters
    impatient.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in expected}))
    return True


@pytest.fixture(autouse=True)
def true_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
