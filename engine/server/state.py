"""The state of a running server, shared by its routes."""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from engine.api.errors import BadParams, Ending, EngineError, outside_vocab
from engine.api.params import SamplingParams
from engine.host.client import EngineClient
from engine.host.prompts import Prompt
from engine.server.async_engine import AsyncEngine
from engine.server.config import MAX_CHOICES, ServerConfig
from engine.server.drain import Drain
from engine.server.fingerprint import Fingerprint
from engine.server.generation import Generation
from engine.server.http.auth import prefix_salt
from engine.server.http.errors import ApiError
from engine.server.http.limits import ConcurrencyLimiter
from engine.server.native.event_history import EventHistory
from engine.server.native.metrics import Metrics
from engine.server.native.replies import ReplyStore
from engine.server.reply_grammar import ToolCallRules
from engine.server.tool_calls.formats import style as call_style
from engine.server.urgency import USUAL, Urgency

log = logging.getLogger("minichat.server")

_MODES = 64  # sets of template options whose result is cached


def mode_of(options: Mapping[str, Any]) -> bytes:
    """Return a fixed-size cache key for template options, which may be long."""
    return sha256(repr(sorted(options.items())).encode(errors="replace")).digest()


@dataclass(eq=False)
class ServerState:
    """Created on the event loop at startup."""

    host: EngineClient
    config: ServerConfig
    drain: Drain
    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.engine = AsyncEngine(self.host)
        self.gate = ConcurrencyLimiter(self.config.in_flight, self.config.per_key)
        self.drain.running = lambda: self.gate.requests
        self.fingerprint = Fingerprint(self.engine, self.config.name, self.config.version)
        self.metrics = Metrics(self.host, self.config.name, self.config.metrics_prefix)
        self.events = EventHistory(self.host, self.engine, self.drain, self.boot, self.config.pulse)
        self.replies = ReplyStore(self.run, self.config)
        self.tool_style = call_style(self.host.templates)
        self._opens: dict[bytes, bool] = {}
        self.preparing = asyncio.get_running_loop().create_task(self.prepare())

    async def served_names(self) -> list[str]:
        """Return the model's names, and those of the loaded adapters."""
        adapters = (await self.engine.snapshot()).adapters
        return [*self.config.names, *(each.name for each in adapters if each.name not in self.config.names)]

    def adapter_of(self, model: str | None) -> str:
        """Return the adapter that a served name means; "" for the model itself."""
        return "" if model is None or model in self.config.names else model

    async def served_name(self, requested: str | None) -> str:
        """Return the model's name for a response: the requested one, or the first of this server's."""
        if requested is None:
            return self.config.name
        if requested not in self.config.names and requested not in (served := await self.served_names()):
            names = ", ".join(map(repr, served))
            raise ApiError(
                404,
                f"model {requested[:80]!r} does not exist; this server serves {names}",
                param="model",
                code="model_not_found",
            )
        return requested

    async def check_tokens(self, **fields: Sequence[int]) -> None:
        """Raise if a field has a token outside the model's vocabulary."""
        shot = await self.engine.snapshot()
        for name, tokens in fields.items():
            if problem := outside_vocab(shot.vocab, tokens):
                raise BadParams(name, problem)

    def run(
        self,
        key: bytes,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        urgency: Urgency = USUAL,
        salt: str = "",
        reply_prefix: Sequence[int] = (),
        parent: int | None = None,
        adapter: str = "",
        calls: ToolCallRules | None = None,
    ) -> Generation:
        """Reserve places in the concurrency limit and return a generation, not yet started.

        `salt`: a secret of the client's that separates its prefix cache further than its key.
        """
        if self.drain.begun:
            raise Ending("the server is shutting down")
        urgency.check(self.config.max_priority)
        if self.config.log_prompts:
            log.info("prompts: %r", prompts)
        if len(prompts) * params.samples > MAX_CHOICES:
            name = "n" if params.best_of is None else "best_of"
            total = f"{len(prompts)} prompts with {name}={params.samples}"
            raise ApiError(400, f"{name}: {total} exceed {MAX_CHOICES} choices", param=name)
        # A beam hypothesis takes a row of the batch, just as a sample does.
        rows, name = max((params.beams, "beams"), (params.samples, "best_of" if params.best_of else "n"))
        ticket = self.gate.enter(key, len(prompts) * rows, name if rows > 1 else "prompt")
        return Generation(
            self.engine,
            prompts,
            params,
            ticket,
            self.metrics,
            urgency=urgency,
            salt=prefix_salt(key, salt),
            reply_prefix=reply_prefix,
            parent=parent,
            adapter=adapter,
            calls=calls,
        )

    async def prepare(self) -> None:
        """Prepare what the first chat would wait for: start the helper process for templates."""
        with suppress(EngineError):
            await self.fingerprint.read()
            if self.host.has_template:
                await self.opens_thinking(mode_of({}), {})

    async def opens_thinking(self, mode: bytes, options: Mapping[str, Any]) -> bool:
        """Whether the template ends the prompt with <think>, so that a reply starts inside its reasoning."""
        if mode not in self._opens:
            if len(self._opens) >= _MODES:
                self._opens.clear()
            self._opens[mode] = await self.engine.work(lambda: self.host.opens_thinking(options))
        return self._opens[mode]

    def close(self) -> None:
        self.preparing.cancel()
        self.replies.close()
        self.events.close()
        self.fingerprint.close()
        self.metrics.close()
        self.engine.close()
