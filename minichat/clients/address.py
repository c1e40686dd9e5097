"""Where an engine elsewhere is, and the key that opens it."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from engine.api.errors import BadInput

KEY_VARIABLE = "MINICHAT_API_KEY"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """A server's root, over TCP or over a Unix socket."""

    url: str
    uds: str = ""
    key: str = field(default="", repr=False)
    name: str = ""

    @property
    def words(self) -> str:
        """As people call it."""
        return self.name or self.uds or self.url.partition("://")[2]

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def near(self) -> bool:
        """Whether it can only be this machine."""
        return bool(self.uds) or is_loopback(urlsplit(self.url).hostname or "")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def server_url(given: str) -> str:
    """A server's root, from what people write: with or without http://, and the /v1 of OpenAI's clients."""
    url = given if _SCHEME.match(given) else f"http://{given}"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadInput(f"{given!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not host or any(map(str.isspace, url)):
        raise BadInput(f"{given!r} is no address; write it as http://host:8000, or --uds FILE")
    if parts.username or parts.password:
        raise BadInput("an address holds no password; --api-key-file names a file with the key")
    if parts.query or parts.fragment:
        raise BadInput(f"{given!r} is no server's root: leave out what follows the path")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def find_key(file: str | None, own: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The first key of the file, else the environment's, else this person's own where that may be meant."""
    if file is not None:
        return _first_key(Path(file).expanduser())
    if given := environment.get(KEY_VARIABLE, "").strip():
        return _sound(given, KEY_VARIABLE)
    return _first_key(own) if own is not None and own.is_file() else ""


def _first_key(file: Path) -> str:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the key in {file} cannot be read: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise BadInput(f"{file} has no key; the server keeps its own in server.key (minichat locate)")
    return _sound(keys[0], str(file))


def _sound(key: str, place: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise BadInput(f"the key of {place} has characters that no key has")
    return key
