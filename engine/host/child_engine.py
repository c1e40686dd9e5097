"""What an engine's child process runs: the parent's commands. process.py is the parent's side.

It exits when the socket closes, so it also ends if the parent is killed.
"""

import gc
import logging
import os
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.api import wire
from engine.api.commands import Command, Sender, StreamingCommand, decode_command, encode_result
from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.api.events import log
from engine.generated import kept_code
from engine.host.frames import FrameSocket
from engine.host.outbox import Outbox
from engine.host.thread import EngineThread
from engine.text.tokenizer import Tokenizer
from engine.timeline import timed

if TYPE_CHECKING:
    from engine.serving.engine import Engine

_BROKEN = 70  # the exit code for an internal error; the log has the details


class CommandServer:
    """Runs the parent's commands, and answers each under its number."""

    def __init__(self, host: EngineThread, tokenizer: Tokenizer, outbox: Outbox) -> None:
        self._host, self._tokenizer, self._outbox = host, tokenizer, outbox

    def ready(self) -> dict[str, Any]:
        """Return what the parent needs to tokenize prompts, and the first snapshot."""
        tokenizer = self._tokenizer
        return {
            "tokenizer": None if tokenizer.folder is None else str(tokenizer.folder),
            "vocab": tokenizer.vocab_size,
            "snapshot": wire.encode_snapshot(self._host.snapshot()),
        }

    def take(self, question: dict[str, Any]) -> None:
        """Start a command. Never blocks."""
        number = question["ask"]
        try:
            command = decode_command(question["command"], Sender.SCREEN)
        except EngineError as error:
            self._outbox.answer(partial(_refusal, number, error))
            return
        sink = partial(self._outbox.delta, number) if isinstance(command, StreamingCommand) else None
        self._host.send(
            command,
            sink,
            lambda done: self._outbox.answer(partial(_answer, number, type(command), done)),
        )


def _answer(number: int, kind: type[Command[Any]], done: Future[Any]) -> dict[str, Any]:
    error = done.exception()
    if error is not None:
        return _refusal(number, error)
    return {"to": number, "is": encode_result(kind, done.result())}


def _refusal(number: int, error: BaseException) -> dict[str, Any]:
    return {"to": number, "error": wire.encode_error(_of_engine(error))}


def _of_engine(error: BaseException) -> EngineError:
    return error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {error}")


def _begin(settings: dict[str, Any], outbox: Outbox) -> CommandServer:
    config = wire.config_from_json(settings["config"])
    engine = _engine(config, settings["dry_rate"], outbox)
    engine.bus.subscribe(outbox.event)
    kept_code.end()
    with timed("garbage collection"):
        gc.collect()  # without the objects of imported modules, which are frozen by now: they take 0.1 s
    gc.freeze()  # otherwise each collection traverses the engine's tables and delays a step
    gc.enable()
    return CommandServer(EngineThread(engine, warm=config.warm), engine.tokenizer, outbox)


def _engine(config: EngineConfig, dry_rate: float | None, outbox: Outbox) -> "Engine":
    """Imports torch; the listener is running and sees if the parent ends."""
    if dry_rate is not None:
        from engine.dry import dry_engine

        return dry_engine(config, rate=dry_rate)
    from engine.start import start

    return start(
        config,
        progress=lambda *bytes: outbox.note("progress", bytes),
        found=lambda folder: outbox.note("folder", str(folder)),
        imported=gc.freeze,
        phase=partial(outbox.note, "phase"),
    )


def _listen(questions: Iterable[Any], server: Future[CommandServer]) -> None:
    try:
        for question in questions:
            server.result().take(question)
    except Exception:
        log.exception("invalid command from the parent process")
        os._exit(_BROKEN)
    os._exit(0)  # whatever the engine's thread is doing


def run(connection: int) -> None:
    """Run the engine until the socket with this number closes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    frames = FrameSocket(socket.socket(fileno=connection))
    questions = iter(frames)
    with timed("waiting for the configuration"):
        first = next(questions, None)
    if first is None:
        os._exit(0)  # the parent has ended before it had a configuration; torch may be half imported
    outbox = Outbox(frames, lost=partial(os._exit, _BROKEN))
    server: Future[CommandServer] = Future()
    listening = threading.Thread(target=_listen, args=(questions, server), name="listener", daemon=True)
    listening.start()
    try:
        made = _begin(first["start"], outbox)
    except Exception as error:
        log.exception("the engine did not start")
        outbox.answer(partial(_refusal, first["ask"], error))
        outbox.close()
        os._exit(1)
    ready = {"to": first["ask"], "is": made.ready()}
    outbox.answer(lambda: ready)
    server.set_result(made)
    listening.join()
