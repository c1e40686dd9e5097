"""Compiles the C kernels for this CPU when they are first needed, and keeps them in the user's cache.

It takes a second, once per machine. Without a compiler (Triton needs one, too) or the instructions, the
engine multiplies with torch's kernels.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from engine.api.events import log

SOURCE = Path(__file__).with_name("products.c")
FOLDER = "MINICHAT_KERNELS"  # the variable that names another folder for the compiled kernels
_BYTES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")  # as Linux names them
_NEEDED = {4: _BYTES, 8: _BYTES, 16: (*_BYTES[:4], "avx512_bf16")}  # instructions by bits of a weight
_COMPILERS = ("cc", "gcc", "clang")
_WITHIN = 120.0  # seconds

Kernel = Callable[[int, int, int, int, int], int]  # weight, x, rows, out, threads


_gate = threading.Lock()  # held while a kernel is compiled


@cache
def why_not(bits: int) -> str | None:
    """Return None if weights of so many bits can be multiplied here, else the reason."""
    if missing := _missing(bits):
        return f"this CPU has no {missing[0]}"
    try:
        kernel(bits)
    except OSError as error:
        log.info("torch multiplies instead of the compiled kernels: %s", error)  # doctor reports it
        return str(error)
    return None


@cache
def kernel(bits: int) -> Kernel:
    """The product of products.c. Raises OSError.

    Import torch before: both use the OpenMP library that is loaded first, and torch's may be newer.
    """
    found = ctypes.CDLL(str(library(bits))).product
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)
    return found


def library(bits: int) -> Path:
    """The file of the compiled kernel, which is in the cache or is compiled now. Raises OSError."""
    path = _folder() / f"products-{bits}-{_digest(bits)}.so"
    with _gate:
        if not path.is_file():
            _compile(bits, path)
    return path


def prepare() -> None:
    """Compile the kernel for weights in bfloat16, if this CPU can run it. `kernel` reports why it fails."""
    if not _missing(16):
        with suppress(OSError):
            library(16)


def _missing(bits: int) -> list[str]:
    return [each for each in _NEEDED[bits] if each not in _instructions()]


@cache
def _instructions() -> frozenset[str]:
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


def _options(bits: int) -> list[str]:
    instructions = [f"-m{each.replace('_', '')}" for each in _NEEDED[bits]]
    return ["-std=gnu11", "-O2", "-shared", "-fPIC", "-fopenmp", "-mfma", *instructions, f"-DBITS={bits}"]


def _digest(bits: int) -> str:
    return sha256(SOURCE.read_bytes() + " ".join(_options(bits)).encode()).hexdigest()[:16]


def _compile(bits: int, path: Path) -> None:
    """Write the library in one piece, since other processes may do the same."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C compiler: none of {', '.join(_COMPILERS)} is on the PATH")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [compiler, *_options(bits), str(SOURCE), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_WITHIN)
        except subprocess.CalledProcessError as error:
            first = (error.stderr.strip() or f"it ended with {error.returncode}").splitlines()[0]
            raise OSError(f"{compiler} cannot compile {SOURCE.name}: {first}") from None
        except subprocess.TimeoutExpired:
            raise OSError(f"{compiler} took more than {_WITHIN:g} s for {SOURCE.name}") from None
        made.replace(path)
