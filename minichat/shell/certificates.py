"""The certificate of `minichat serve`, checked before a model is loaded, and the password of its key."""

import ssl
import sys
from getpass import getpass

from engine.api.errors import BadInput


def password_of(certificate: str, key: str) -> str:
    """Return the key's password, which is asked for on the terminal, or "" if it has none.

    Refuses files that are not a certificate and its key.
    """
    if not _locked(certificate, key, ""):
        return ""
    if not sys.stdin.isatty():
        raise BadInput(
            f"--tls-key {key} needs a password, and there is no terminal to ask for it; "
            f"write it without one: openssl pkey -in {key} -out FILE"
        )
    try:
        password = getpass(f"Password of {key}: ")
    except EOFError:
        password = ""
    if _locked(certificate, key, password):
        raise BadInput(f"this is not the password of --tls-key {key}")
    return password


def _locked(certificate: str, key: str, password: str) -> bool:
    """Whether the key needs another password."""
    asked = False

    def give() -> str:
        nonlocal asked
        asked = True
        return password

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, give)
    except (OSError, ValueError) as error:
        if asked and getattr(error, "reason", "") != "KEY_VALUES_MISMATCH":
            return True
        files = f"--tls-cert {certificate} and --tls-key {key}"
        raise BadInput(f"{files} are not a certificate and its key: {error}") from None
    return False
