"""The engine's thread: commands in, deltas and snapshots out."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from engine import timeline
from engine.api.commands import Command
from engine.api.errors import EngineError
from engine.api.events import Handler, log
from engine.api.snapshot import Snapshot
from engine.host.client import EngineClient, Sink
from engine.serving.engine import Engine
from engine.serving.mailbox import Mailbox
from engine.serving.reports.blocks import report_blocks
from engine.serving.transfers import TierProblems, send_orders
from engine.serving.warm_up import WarmUp
from engine.text.chat import ChatFormat

STOPPED = "the engine has stopped"  # in the log, with the traceback

T = TypeVar("T")


class EngineThread(EngineClient):
    """Owns an engine and steps it. Commands take effect between two steps."""

    def __init__(self, engine: Engine, *, warm: bool = False, chat: ChatFormat | None = None) -> None:
        """`warm`: run steps of every kind before the first request. `chat`: formats its prompts."""
        self._engine = engine
        self._warm_up = WarmUp(engine, engine.runner.graph_sizes, whole=warm)
        engine.warmed = self._warm_up.share
        self._chat = chat or ChatFormat(engine.tokenizer)
        self._mailbox = Mailbox(engine)
        engine.ranks.on_loss(self._mailbox.wake)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # From any thread

    def send(
        self,
        command: Command[T],
        sink: Sink | None = None,
        told: Callable[[Future[T]], None] | None = None,
    ) -> Future[T]:
        """`told`: called with the answer before any event or delta that follows from it."""
        return self._mailbox.put(command, sink, told)

    def snapshot(self) -> Snapshot:
        if threading.current_thread() is self._thread:  # an event handler would wait for itself
            return self._engine.snapshot()
        return super().snapshot()

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event, on the engine's thread. It must not block."""
        return self._engine.bus.subscribe(handler)

    def close(self) -> None:
        """End all requests and the thread."""
        self._mailbox.close()
        self._thread.join()

    # On the engine's thread

    def _run(self) -> None:
        engine, mailbox = self._engine, self._mailbox
        engine.runner.enter_thread()
        problems, ready = TierProblems(engine.scheduler), False
        while not mailbox.closed:
            try:
                mailbox.drain(wait=not engine.busy and (self._warm_up.over or bool(engine.error)))
                if not engine.error:
                    engine.ranks.check()
                if not engine.error and not self._step() and engine.busy:
                    mailbox.drain(wait=True, timeout=engine.pause())
                if not ready and (ready := engine.warmed == 1):
                    log.info("%s%s", timeline.STARTED, timeline.as_text())
                if self._warm_up.over:
                    engine.after_warm_up()
                problems.report()
                report_blocks(engine.scheduler)
            except Exception as error:
                log.exception(STOPPED)
                name = "" if isinstance(error, EngineError) else f"{type(error).__name__}: "
                engine.die(f"{name}{error}")
        if not engine.error:
            send_orders(engine.scheduler, engine.runner)  # to keep what a reply that has just ended computed
            engine.die("the engine was closed")
        mailbox.drain()
        engine.close()
        self._chat.close()

    def _step(self) -> bool:
        engine = self._engine
        if self._warm_up.over:
            return engine.step()
        progressed = self._warm_up.step()
        engine.warmed = self._warm_up.share
        return progressed
