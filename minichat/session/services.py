"""The services that all conversations share."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.api.params import SamplingParams
from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.clients.protocol import Backend
from minichat.session.pacer import Pacer

Chatting = TypeVar("Chatting")  # Conversation, which imports this module
Taking = TypeVar("Taking", contravariant=True)


class Took(Protocol[Taking]):
    """Called when a conversation has a new request. `role`: what it is for, if not for a reply."""

    def __call__(self, conversation: Taking, request: int, role: str = "", /) -> None: ...


@dataclass(frozen=True, slots=True)
class ChatServices(Generic[Chatting]):
    """The store, the engine and callbacks for changes."""

    store: Store
    backend: Backend
    pacer: Pacer
    ready: asyncio.Event  # set once the engine is ready or has failed
    took: Took[Chatting]
    changed: Callable[[Chatting], None]  # it started, ended or was renamed
    spread: Callable[[Chatting, list[Message]], None]  # it received other samples
    report: Callable[[str], None]
    defaults: SamplingParams  # what a new chat has
    deadline: float | None = None  # seconds until the first token of a reply is due
    clock: Callable[[], float] = time.monotonic
