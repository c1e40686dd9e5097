"""What all conversations share."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.clients.protocol import Backend
from minichat.session.pacer import Pacer

Chatting = TypeVar("Chatting")  # Conversation, whose file knows this one


@dataclass(frozen=True, slots=True)
class Desk(Generic[Chatting]):
    """The store, the engine, and whoever wants to know what happens."""

    store: Store
    backend: Backend
    pacer: Pacer
    ready: asyncio.Event  # the engine is there, or never will be
    took: Callable[[Chatting, int], None]  # a request of the engine belongs to a conversation now
    changed: Callable[[Chatting], None]  # it began, ended, or has another name
    spread: Callable[[Chatting, list[Message]], None]  # it has got other replies, too
    complain: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
