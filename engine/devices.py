"""What there is to run on, and how much memory is left there."""

import ctypes
import os
from pathlib import Path

import torch

from engine.api.errors import BadInput


def pick(name: str) -> torch.device:
    """The device of that name; `auto` takes a CUDA GPU where there is one."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"there is no device {name!r}; say cpu, cuda, or cuda:1 and the like") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise BadInput(f"device {name!r} is not there: torch {torch.__version__} sees no CUDA GPU")
        if (device.index or 0) >= torch.cuda.device_count():
            raise BadInput(f"device {name!r} is not there: {torch.cuda.device_count()} CUDA GPUs are")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise BadInput(f"device {name!r} is of a kind that the engine does not run on; say cpu or cuda")
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken there."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return free_host_memory()


def memory(device: torch.device) -> int:
    """Bytes that it has in all."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host_memory()


def free_host_memory() -> int:
    """Bytes of main memory that are left, within the limits of a container."""
    free = _meminfo("MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    return free if limit is None or used is None else min(free, limit - used)


def give_back() -> None:
    """Main memory that this process holds and does not use; its allocator would keep it for later."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)


def host_memory() -> int:
    """Bytes of main memory in all."""
    return _meminfo("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _meminfo(key: str) -> int | None:
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


def _number(path: str) -> int | None:
    file = Path(path)
    text = file.read_text().strip() if file.exists() else ""
    return int(text) if text.isdigit() else None
