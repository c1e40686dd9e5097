"""Compiles the C kernels for this CPU when they are first needed, and keeps them in the user's cache.

It takes a second, once per machine. Without a compiler (Triton needs one, too) or the instructions, the
engine uses torch's kernels.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from engine.api.events import log

FOLDER = "MINICHAT_KERNELS"  # the variable that names another folder for the compiled kernels
_COMPILERS = ("cc", "gcc", "clang")
_WITHIN = 120.0  # seconds
_HERE = Path(__file__).parent
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX2 = ("avx2", "fma")
_HEADERS = ("panels.h", "vectors.h", "avx512.h", "avx2.h")


class CFile(NamedTuple):
    """A file of kernels, and how it is compiled."""

    file: str
    needed: tuple[str, ...]  # instructions, as Linux names them
    bits: int = 0  # of a weight

    @property
    def options(self) -> list[str]:
        instructions = [f"-m{each.replace('_', '')}" for each in self.needed]
        always = ["-std=gnu11", "-O2", "-shared", "-fPIC", "-fopenmp", "-mfma"]
        return [*always, *instructions, f"-DBITS={self.bits}"]

    @property
    def digest(self) -> str:
        texts = [Path(_HERE, each).read_bytes() for each in (*_HEADERS, self.file)]
        return sha256(b"".join(texts) + " ".join(self.options).encode()).hexdigest()[:16]


PRODUCTS = {
    4: CFile("products.c", (*_AVX512, "avx512_vnni"), 4),
    8: CFile("products.c", (*_AVX512, "avx512_vnni"), 8),
    16: CFile("products.c", (*_AVX512, "avx512_bf16"), 16),
}
PRODUCTS_AVX2 = CFile("products_avx2.c", _AVX2, 16)
# The same file for several kinds of CPUs, the best one first.
ROWS = [CFile("rows.c", needed) for needed in (_AVX512, _AVX2)]
ATTENTION = [CFile("attention.c", needed) for needed in ((*_AVX512, "avx512_bf16"), _AVX512, _AVX2)]


def products(bits: int) -> CFile:
    """The products with a weight of so many bits. In bfloat16 a CPU without AVX-512 has its own."""
    without = "avx512f" not in instructions()
    return PRODUCTS_AVX2 if bits == 16 and without and not _missing(PRODUCTS_AVX2) else PRODUCTS[bits]


def rows() -> CFile:
    return _best(ROWS)


def attention() -> CFile:
    return _best(ATTENTION)


def _best(sources: Sequence[CFile]) -> CFile:
    """The first that this CPU has the instructions for, or the last."""
    return next((each for each in sources if not _missing(each)), sources[-1])


_gates = defaultdict[CFile, threading.Lock](threading.Lock)  # held while it is compiled
_compiling = set[CFile]()


@cache
def why_not(source: CFile) -> str | None:
    """Return None if its kernels run here, else the reason."""
    if missing := _missing(source):
        return f"this CPU has no {missing[0]}"
    try:
        kernels(source)
    except OSError as error:
        log.info("torch runs instead of the kernels in %s: %s", source.file, error)  # doctor reports it
        return str(error)
    return None


@cache
def kernels(source: CFile) -> ctypes.CDLL:
    """Its functions. Raises OSError.

    Import torch before: both use the OpenMP library that is loaded first, and torch's may be newer.
    """
    return ctypes.CDLL(str(library(source)))


def library(source: CFile) -> Path:
    """The file of the compiled kernels, which is in the cache or is compiled now. Raises OSError."""
    name = f"{Path(source.file).stem}-{source.bits}" if source.bits else Path(source.file).stem
    path = _folder() / f"{name}-{source.digest}.so"
    with _gates[source]:
        if not path.is_file():
            _compiling.add(source)
            try:
                _compile(source, path)
            finally:
                _compiling.discard(source)
    return path


def compiling() -> bool:
    """Whether a compiler runs, for this process."""
    return bool(_compiling)


def prepare() -> None:
    """Compile what a model in bfloat16 needs, if this CPU can run it. `kernels` reports why it fails."""

    def compile_one(source: CFile) -> None:
        if not _missing(source):
            with suppress(OSError):
                library(source)

    sources = products(16), rows(), attention()
    with ThreadPoolExecutor(len(sources)) as together:
        list(together.map(compile_one, sources))


def _missing(source: CFile) -> list[str]:
    return [each for each in source.needed if each not in instructions()]


@cache
def instructions() -> frozenset[str]:
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
    except OSError:  # not Linux
        return frozenset()


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(FOLDER) or Path(cache, "minichat", "kernels"))


def _compile(source: CFile, path: Path) -> None:
    """Write the library in one piece, since other processes may do the same."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C compiler: none of {', '.join(_COMPILERS)} is on the PATH")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [compiler, *source.options, str(_HERE / source.file), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_WITHIN)
        except subprocess.CalledProcessError as error:
            first = (error.stderr.strip() or f"it ended with {error.returncode}").splitlines()[0]
            raise OSError(f"{compiler} cannot compile {source.file}: {first}") from None
        except subprocess.TimeoutExpired:
            raise OSError(f"{compiler} took more than {_WITHIN:g} s for {source.file}") from None
        made.replace(path)
