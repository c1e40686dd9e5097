"""Options of an engine that name a place, read from text."""

import os
import re
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from engine.api.errors import BadInput

_MEETING = re.compile(r"(?P<host>\[[^]]+\]|[^:]+):(?P<port>[0-9]{1,5}):(?P<file>.+)")
_SECRET = 16  # bytes, at least


def expanded(name: str) -> Path:
    """The path with ~ and ~USER replaced. An unknown user is part of the name: pathlib would raise."""
    return Path(os.path.expanduser(name))


class DiskRoom(NamedTuple):
    """Room for cache blocks on a disk."""

    folder: Path  # inside the one named, which may hold other files
    nbytes: int

    @classmethod
    def parse(cls, text: str) -> "DiskRoom":
        """Read DIR:GB. Raises BadInput."""
        folder, _, size = text.rpartition(":")
        try:
            nbytes = round(float(size) * 1e9)
        except (ValueError, OverflowError):
            nbytes = 0
        if not folder or nbytes <= 0:
            raise BadInput(f"kv_disk must be DIR:GB, with GB above 0, such as /scratch/kv:20, not {text!r}")
        return cls(expanded(folder) / "minichat-kv", nbytes)


class ExchangePlace(NamedTuple):
    """Memory through which the engines of a fleet send blocks to each other."""

    path: str
    segments: int  # one for each engine that sends
    own: int | None  # that of this engine
    gpus: tuple[int, ...] = ()  # of all engines; blocks stay in their memory if they reach each other's

    @classmethod
    def parse(cls, text: str) -> "ExchangePlace":
        """Read PATH:SEGMENTS:OWN:GPUS, in which OWN and GPUS may be empty. Raises BadInput."""
        path, segments, own, gpus = [*text.rsplit(":", 3), "", "", ""][:4]
        listed = gpus.split(",") if gpus else []
        numbers = all(each.isdecimal() for each in (segments, *listed)) and (own.isdecimal() or not own)
        if not (path and numbers and int(segments) > int(own or 0)):
            raise BadInput(f"exchange must be PATH:SEGMENTS:OWN:GPUS, not {text!r:.100}")
        return cls(path, int(segments), int(own) if own else None, tuple(map(int, listed)))

    def __str__(self) -> str:
        own = "" if self.own is None else self.own
        return f"{self.path}:{self.segments}:{own}:{','.join(map(str, self.gpus))}"


def digest_of(secret: bytes) -> bytes:
    """What is used of a secret of any length."""
    return sha256(secret).digest()


class MeetingPlace(NamedTuple):
    """Where ranks on other machines connect to their engine, and the secret that both have."""

    host: str
    port: int
    file: Path

    @classmethod
    def parse(cls, text: str) -> "MeetingPlace":
        """Read HOST:PORT:FILE; an IPv6 address is in brackets. Raises BadInput."""
        found = _MEETING.fullmatch(text)
        if not found or not 0 < int(found["port"]) < 2**16:
            raise BadInput(f"meet must be HOST:PORT:FILE, such as 10.0.0.5:7000:secret, not {text!r:.100}")
        return cls(found["host"].strip("[]"), int(found["port"]), expanded(found["file"]))

    def secret(self) -> bytes:
        """The secret in the file. Raises BadInput if that is not good enough."""
        try:
            text, mode = self.file.read_bytes().strip(), self.file.stat().st_mode
        except OSError as error:
            raise BadInput(f"meet: cannot read the secret in {self.file}: {error.strerror}") from None
        if len(text) < _SECRET:
            raise BadInput(f"meet: the secret in {self.file} must have at least {_SECRET} bytes")
        if mode & 0o077:
            raise BadInput(f"meet: others may read the secret in {self.file}; run chmod 600 on it")
        return digest_of(text)


class AdapterPlace(NamedTuple):
    """A LoRA adapter to load, and the name that requests use."""

    name: str
    path: str  # a folder, or a name on the hub

    @classmethod
    def parse(cls, text: str) -> "AdapterPlace":
        """Read NAME=PATH. Raises BadInput."""
        name, _, path = text.partition("=")
        if not name or not path:
            raise BadInput(f"adapter must be NAME=PATH, such as sql=/models/sql-lora, not {text!r:.100}")
        return cls(name, path)
