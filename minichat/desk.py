"""What all conversations share."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minichat.backends.protocol import Backend
from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.pacer import Pacer

if TYPE_CHECKING:
    from minichat.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Desk:
    """The store, the engine, and whoever wants to know what happens."""

    store: Store
    backend: Backend
    pacer: Pacer
    ready: asyncio.Event  # the engine is there, or never will be
    took: Callable[["Conversation", int], None]  # a request of the engine belongs to a conversation now
    changed: Callable[["Conversation"], None]  # it began, ended, or has another name
    spread: Callable[["Conversation", list[Message]], None]  # it has got other replies, too
    complain: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
