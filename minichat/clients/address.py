"""The address and API key of a remote engine."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from engine.api.errors import BadInput
from engine.api.places import expanded

KEY_VARIABLE = "MINICHAT_API_KEY"
PORT = 8000  # of `minichat serve`, by default
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """The root URL of a server, over TCP or a Unix socket."""

    url: str
    uds: str = ""
    key: str = field(default="", repr=False)
    name: str = ""

    @property
    def words(self) -> str:
        """The address as displayed, always with its port."""
        if self.name or self.uds:
            return self.name or self.uds
        scheme, _, place = self.url.partition("://")
        host, slash, path = place.partition("/")
        usual = ":443" if scheme == "https" else ":80"
        return f"{host}{usual if urlsplit(self.url).port is None else ''}{slash}{path}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def near(self) -> bool:
        """Whether the server is certainly on this machine."""
        return bool(self.uds) or is_loopback(urlsplit(self.url).hostname or "")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def server_url(given: str) -> str:
    """Normalize a server's root URL; the /v1 of OpenAI clients is removed.

    Without a scheme it is the address of `minichat serve`, so its port is used by default.
    """
    url = given if _SCHEME.match(given) else f"http://{given}"
    invalid = BadInput(f"invalid address {given!r}; use http://host:8000 or --uds FILE")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # names only a part of it
        raise invalid from None
    if parts.scheme not in ("http", "https") or not host or any(map(str.isspace, url)):
        raise invalid
    if parts.username or parts.password:
        raise BadInput("an address must not contain a password; use --api-key-file")
    if parts.query or parts.fragment:
        raise BadInput(f"{given!r} is not a server root; remove what follows the path")
    place = parts.netloc.rstrip(":")
    if not _SCHEME.match(given) and parts.port is None:
        place = f"{place}:{PORT}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/').removesuffix('/v1')}"


def find_key(file: str | None, own: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The key from the file, the environment, or the user's own key file if given."""
    if file is not None:
        return _first_key(expanded(file))
    if given := environment.get(KEY_VARIABLE, "").strip():
        return _sound(given, KEY_VARIABLE)
    return _first_key(own) if own is not None and own.is_file() else ""


def _first_key(file: Path) -> str:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadInput(f"cannot read the key in {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"cannot read the key in {file}: not UTF-8 text") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise BadInput(f"{file} contains no key; the server's own is in server.key (see minichat locate)")
    return _sound(keys[0], str(file))


def _sound(key: str, place: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise BadInput(f"the key in {place} contains invalid characters")
    return key
