"""OpenAI's system_fingerprint: it changes when the same request and seed may give another reply."""

from hashlib import sha256

from engine.api.events import Event, Quantized, Recached, Restarted
from engine.server.async_engine import AsyncEngine


class Fingerprint:
    """Of the model, the schemes of its weights and its cache, and the program's version."""

    def __init__(self, engine: AsyncEngine, model: str, version: str) -> None:
        self._engine, self._model, self._version = engine, model, version
        self._weights, self._cache = "", ""  # schemes; empty until they are known
        self.close = engine.host.subscribe(self._on_event)

    async def read(self) -> str:
        """Return the current fingerprint. Only the first call asks the engine."""
        if not (self._weights and self._cache):
            found = await self._engine.snapshot()
            self._weights = self._weights or found.quantization
            self._cache = self._cache or found.kv_scheme
        whole = (self._model, self._weights, self._cache, self._version)
        return f"fp_{sha256(repr(whole).encode()).hexdigest()[:12]}"

    def _on_event(self, event: Event) -> None:
        """Runs on the engine's thread."""
        if type(event) is Quantized and not event.error:
            self._weights = event.scheme
        elif type(event) is Recached:
            self._cache = event.scheme
        elif type(event) is Restarted:  # with the schemes of the first start
            self._weights = self._cache = ""
