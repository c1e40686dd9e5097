"""A place where ranks meet."""

import socket
from pathlib import Path

import pytest


@pytest.fixture
def meet(tmp_path: Path) -> str:
    """Where the ranks meet: a free port, and a secret."""
    (secret := tmp_path / "secret").write_text("s3cret of sixteen bytes or more\n")
    secret.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}:{secret}"
