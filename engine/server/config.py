"""What a server is run with."""

from dataclasses import dataclass

MAX_CHOICES = 64
MAX_BODY = 8 * 2**20  # bytes: a million tokens, as text or as ids
MAX_DEPTH = 64  # of JSON
MAX_MEMBERS = 10_000  # of one of its objects
MAX_PARTS = 200_000  # of its lists and objects, all together


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The choices made when a server starts."""

    name: str  # the model's, to clients
    version: str = ""  # the program's
    keys: tuple[str, ...] = ()  # each opens everything; none: no key is asked for
    any_host: bool = False  # without a key, requests by any name of this machine are answered
    in_flight: int = 1024  # choices that may run and wait at once, over all clients
    per_key: int = 512  # of them for one key
    max_body: int = MAX_BODY  # bytes that a request may have
    grace: float = 60.0  # seconds for which a reply of /engine/replies runs on without a reader
    drain: float = 30.0  # seconds that replies have left when the server is told to end
    log_prompts: bool = False
