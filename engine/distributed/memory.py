"""Memory that processes share, without a name: it is freed with the last process that has it open."""

import mmap
import os
import tempfile


def anonymous(size: int) -> int:
    """Return a file descriptor of `size` bytes of zeros. Nothing appears in /dev/shm, even after SIGKILL."""
    if hasattr(os, "memfd_create"):  # Linux
        memory = os.memfd_create("minichat")
    else:
        with tempfile.TemporaryFile() as file:
            memory = os.dup(file.fileno())
    os.ftruncate(memory, size)
    return memory


def mapped(memory: int, size: int) -> mmap.mmap:
    """Map shared memory. Raises if it is smaller than `size`, since a read beyond its end is fatal."""
    if (there := os.fstat(memory).st_size) < size:
        raise ValueError(f"the shared memory has {there} bytes, {size} are needed")
    return mmap.mmap(memory, size)
