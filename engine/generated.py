"""The code that Python generates while modules are imported, kept on disk beside their bytecode.

`dataclasses` writes the methods of each class as text and compiles it, 1,700 texts in a start: a fifth of the
processor time in which torch and the engine are imported.
"""

import dataclasses
import marshal
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import CodeType
from typing import Any

_MOST = 10_000  # texts in the file


class KeptCode:
    """`dataclasses` uses it from `begin` to `end`, in place of Python's `exec`."""

    def __init__(self, file: Path | None) -> None:
        """`file`: None keeps nothing."""
        self._file = file
        self._kept: dict[str, CodeType] = {}
        self._used: dict[str, CodeType] = {}

    def begin(self) -> None:
        if self._file is not None:
            self._kept = _read(self._file)
            vars(dataclasses)["exec"] = self._exec

    def end(self) -> None:
        """Write the file if something was missing. Free its texts."""
        vars(dataclasses).pop("exec", None)
        if self._file is not None and not self._used.keys() <= self._kept.keys():
            all = self._kept | self._used
            _write(self._file, all if len(all) <= _MOST else self._used)
        self._kept, self._used = {}, {}

    def _exec(self, text: str, *names: Any) -> None:
        code = self._kept.get(text)
        if code is None:
            code = compile(text, "<string>", "exec", dont_inherit=True)
        self._used[text] = code
        exec(code, *names)


def _read(file: Path) -> dict[str, CodeType]:
    """Like bytecode, it is what this user's Python has written, or nothing for another Python."""
    with suppress(OSError, EOFError, ValueError, TypeError):
        content = file.read_bytes()
        found = marshal.loads(content[len(MAGIC_NUMBER) :]) if content.startswith(MAGIC_NUMBER) else {}
        return found if isinstance(found, dict) else {}
    return {}


def _write(file: Path, code: dict[str, CodeType]) -> None:
    part = file.with_suffix(f".{os.getpid()}")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(MAGIC_NUMBER + marshal.dumps(code))
        part.replace(file)
    except OSError:  # where bytecode cannot be written either
        with suppress(OSError):
            part.unlink()


def _file(use: str) -> Path | None:
    if sys.dont_write_bytecode:
        return None
    with suppress(NotImplementedError):  # a Python without cached bytecode
        return Path(cache_from_source(__file__, optimization=use))  # a name like that of bytecode
    return None


@contextmanager
def keeping(use: str) -> Iterator[None]:
    """Keep the code of what this block imports. Each use has a file: a process reads only what it needs."""
    code = KeptCode(_file(use))
    code.begin()
    try:
        yield
    finally:
        code.end()


kept_code = KeptCode(_file("code"))  # of the process of an engine
