"""The hash of Triton's files, by which Triton finds its compiled kernels.

It reads 400 MB, so it is kept beside them for the next start, with the sizes and times of the files.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

_HASHED = ("compiler", "backends", "language")  # folders whose modules are part of it


def hash_triton() -> None:
    """Compute the hash, or have Triton use that of an earlier start if no file has changed since."""
    from triton import knobs
    from triton.runtime import cache

    folder = Path(cache.__file__).parents[1]
    kept, files = Path(knobs.cache.dir) / "minichat" / "triton.hash", _files(folder)
    with suppress(OSError, ValueError):
        match json.loads(kept.read_text()):
            case [found, str() as key] if found == files:
                cache.triton_key = lambda: key
                return
    key = cache.triton_key()
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([files, key]))
        part.replace(kept)


def _files(folder: Path) -> list[list[str | int]]:
    found = [folder / "__init__.py", folder / "runtime" / "cache.py", *(folder / "_C").glob("libtriton*")]
    for name in _HASHED:
        found += (folder / name).rglob("*.py")
    stats = ((str(each), each.stat()) for each in sorted(found))
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats]
