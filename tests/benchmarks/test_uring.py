"""The io_uring of a benchmark reads what is in the file."""

import mmap
import os
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.engine.uring import Ring

SIZE = 4096


@pytest.fixture
def ring() -> Ring:
    try:
        return Ring(4)
    except OSError as error:
        pytest.skip(f"no io_uring here: {error}")


def test_pieces_are_read(ring: Ring, tmp_path: Path) -> None:
    (file := tmp_path / "file").write_bytes(b"".join(bytes([each]) * SIZE for each in range(4)) + b"end")
    memory, fd = mmap.mmap(-1, 4 * SIZE), os.open(file, os.O_RDONLY)
    with closing(ring):
        assert ring.read([(fd, at * SIZE) for at in (3, 1, 0, 2)], memory, SIZE) == 4 * SIZE
        assert sorted(memory[at * SIZE : (at + 1) * SIZE] for at in range(4)) == [
            bytes([each]) * SIZE for each in range(4)
        ]
        many = [(fd, at % 5 * SIZE) for at in range(23)]
        assert ring.read(many, memory, SIZE) == 19 * SIZE + 4 * 3, "more than fit at once, some of them short"
        os.close(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            ring.read([(fd, 0)], memory, SIZE)
