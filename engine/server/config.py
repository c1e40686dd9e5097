"""The server's configuration and its limits."""

from dataclasses import dataclass

HEALTH = "/health"  # the one path that needs no key
MAX_CHOICES = 64
MAX_BODY = 8 * 2**20  # bytes: a million tokens, as text or as ids
MAX_DEPTH = 64  # nesting levels of a JSON body
MAX_MEMBERS = 10_000  # members of one JSON object
MAX_PARTS = 200_000  # lists and objects in one JSON body


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The options of a server, fixed at startup."""

    name: str  # the model's name in the API
    aliases: tuple[str, ...] = ()  # other names that requests may use
    version: str = ""  # the program's version
    keys: tuple[str, ...] = ()  # API keys; each grants full access, and with none no key is required
    origins: tuple[str, ...] = ()  # sites whose pages may call the server from a browser; "*": any
    any_host: bool = False  # without keys: accept any Host header, not only localhost
    in_flight: int = 1024  # choices that may run or wait at once, over all clients
    per_key: int = 512  # the same for one key
    max_priority: int = 10  # levels above the usual priority, 0, that a request may ask for
    max_body: int = MAX_BODY  # bytes of a request body
    grace: float = 60.0  # seconds a reply of /engine/replies keeps running without a reader
    kept: int = 256  # finished replies of /engine/replies that can be read again
    kept_deltas: int = 500_000  # of all of them together, about 150 MB
    kept_seconds: float = 600.0  # after the end and without a reader; with `keep`, after it was read
    pulse: float = 15.0  # seconds without news after which a stream sends a keep-alive
    drain: float = 30.0  # seconds replies have to finish when the server shuts down
    log_prompts: bool = False
    metrics_prefix: str = "minichat"  # of the names in /metrics

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.aliases
