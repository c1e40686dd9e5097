"""A place where ranks meet."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[str]:
    """Where the ranks meet: a free port, and a secret. No other process gets the port meanwhile."""
    (secret := tmp_path / "secret").write_text("s3cret of sixteen bytes or more\n")
    secret.chmod(0o600)
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of which one at a time may listen
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}:{secret}"
