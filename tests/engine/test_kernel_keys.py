"""The keys of Triton kernels."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="no Triton here")

from engine.kernels.triton.keys import globals_of, key_of, take_key

CALLERS = """
import triton
import triton.language as tl
THREE = tl.constexpr(3)

@triton.jit
def shared(x):
    return x + THREE

@triton.jit
def one(x):
    tl.store(x, shared(1))

@triton.jit
def two(x):
    tl.store(x, shared(2))
"""


def test_keys_do_not_depend_on_which_kernel_is_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's depend on whether a callee has its key already, and threads decide which caller is first."""
    (tmp_path / "callers.py").write_text(CALLERS)
    monkeypatch.syspath_prepend(tmp_path)

    def keys(*names: str, key: Callable[[Any], str] = key_of) -> dict[str, str]:
        sys.modules.pop("callers", None)
        module = importlib.import_module("callers")
        return {name: key(getattr(module, name)) for name in names}

    def plain(kernel: Any) -> str:
        return str(kernel.cache_key)

    assert keys("one", "two", key=plain) != keys("two", "one", key=plain), "Triton has changed"
    assert keys("one", "two") == keys("two", "one")


def test_a_key_is_taken_if_the_global_values_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "callers.py"
    monkeypatch.syspath_prepend(tmp_path)

    def one(three: int) -> Any:
        file.write_text(CALLERS.replace("constexpr(3)", f"constexpr({three})"))
        for stale in (tmp_path / "__pycache__").glob("*"):
            stale.unlink()
        sys.modules.pop("callers", None)
        return importlib.import_module("callers").one

    first = one(3)
    key, used = key_of(first), globals_of(first)
    again = one(3)
    take_key(again, key, used)
    assert again.hash == key
    assert globals_of(again) == used != "[]"
    changed = one(4)
    take_key(changed, key, used)
    assert changed.hash is None
    assert key_of(changed) != key
