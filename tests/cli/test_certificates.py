"""The certificate of `serve`, and the password of its key."""

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.api.errors import BadInput
from minichat.shell import certificates
from minichat.shell.certificates import password_of
from tests.cli.conftest import Run


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """A certificate, and its key with the password "secret"."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("no openssl to make a certificate with")
    return _make(openssl, tmp_path, "a"), str(tmp_path / "a.key")


def _make(openssl: str, folder: Path, name: str) -> str:
    files = f"-keyout {folder / name}.key -out {folder / name}.pem"
    words = (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -passout pass:secret -subj /CN=x {files}"
    )
    subprocess.run([openssl, *words.split()], capture_output=True, check=True)
    return str(folder / f"{name}.pem")


class Typist:
    """A terminal on which a password is entered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, typed: str | None) -> None:
        self.typed = typed
        monkeypatch.setattr(certificates, "getpass", self.enter)
        monkeypatch.setattr(certificates.sys, "stdin", self)

    def isatty(self) -> bool:
        return True

    def enter(self, prompt: str) -> str:
        if self.typed is None:
            raise EOFError
        return self.typed


def test_without_a_terminal_a_key_with_a_password_is_refused(pair: tuple[str, str], run: Run) -> None:
    ended = run("serve", "--tls-cert", pair[0], "--tls-key", pair[1])
    assert ended.code == 2
    assert "needs a password, and there is no terminal to ask for it" in ended.err


def test_the_password_is_asked_for(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    Typist(monkeypatch, "secret")
    assert password_of(*pair) == "secret"


@pytest.mark.parametrize("typed", ["wrong", "", "x" * 2000, None])
def test_a_wrong_password(typed: str | None, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    Typist(monkeypatch, typed)
    with pytest.raises(BadInput, match="this is not the password of --tls-key"):
        password_of(*pair)


def test_the_key_of_another_certificate(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _make(str(shutil.which("openssl")), tmp_path, "b")
    Typist(monkeypatch, "secret")
    with pytest.raises(BadInput, match="are not a certificate and its key"):
        password_of(other, pair[1])
