"""Main memory, and how much of it is free. Needs no torch."""

import ctypes
import os
from pathlib import Path

_MMAP_THRESHOLD = -3  # in malloc.h


def free_host_memory() -> int:
    """Free bytes of main memory, within the container's limit."""
    free = _meminfo("MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    return free if limit is None or used is None else min(free, limit - used)


def host_memory() -> int:
    """Total bytes of main memory."""
    return _meminfo("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def trim_heap() -> None:
    """Return unused heap memory to the system; the allocator would keep it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc only
        libc.malloc_trim(0)


def return_large_pieces() -> None:
    """Return each large piece of the heap when it is freed. glibc would come to keep 64 MB of each thread."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 2**17)  # glibc's first value; to set it keeps it from growing


def _meminfo(key: str) -> int | None:
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


def _number(path: str) -> int | None:
    file = Path(path)
    text = file.read_text().strip() if file.exists() else ""
    return int(text) if text.isdigit() else None
