"""The engine's own process: `python -m engine.host.child FD`. process.py is its other end.

It ends when the socket does: a parent that was killed needs no farewell.
"""

import faulthandler
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from engine.api import wire
from engine.api.commands import Beginning, Command, Sender, decode_command, encode_result
from engine.api.errors import EngineError
from engine.api.events import log
from engine.host.frames import FrameSocket
from engine.host.outbox import Outbox
from engine.host.thread import EngineThread
from engine.text.tokenizer import Tokenizer

_BROKEN = 70  # the exit code where something is wrong in here: the log says what


class CommandServer:
    """Takes the parent's commands, and answers by the number of each."""

    def __init__(self, host: EngineThread, tokenizer: Tokenizer, outbox: Outbox) -> None:
        self._host, self._tokenizer, self._outbox = host, tokenizer, outbox

    def ready(self) -> dict[str, Any]:
        """What the parent must know to write prompts by itself, and the first picture."""
        tokenizer = self._tokenizer
        return {
            "tokenizer": None if tokenizer.folder is None else str(tokenizer.folder),
            "vocab": tokenizer.vocab_size,
            "snapshot": wire.encode_snapshot(self._host.snapshot()),
        }

    def take(self, question: dict[str, Any]) -> None:
        """Waits for nothing."""
        number = question["ask"]
        try:
            command = decode_command(question["command"], Sender.SCREEN)
        except EngineError as error:
            self._outbox.answer(partial(_refusal, number, error))
            return
        sink = partial(self._outbox.delta, number) if isinstance(command, Beginning) else None
        answer = self._host.send(command, sink)
        answer.add_done_callback(
            lambda done: self._outbox.answer(partial(_answer, number, type(command), done))
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


def _begin(config: Any, outbox: Outbox) -> CommandServer:
    gc.disable()  # what is made now stays, and each collection would walk over all of it
    from engine.start import start  # torch comes when somebody listens already: the parent may end meanwhile

    engine = start(wire.config_from_json(config), outbox.progress)
    engine.bus.subscribe(outbox.event)
    gc.collect()
    gc.freeze()  # or each collection walks all of torch while a step waits
    gc.enable()
    return CommandServer(EngineThread(engine), engine.tokenizer, outbox)


def _listen(questions: Iterable[Any], server: Future[CommandServer]) -> None:
    try:
        for question in questions:
            server.result().take(question)
    except Exception:
        log.exception("a question cannot be understood")
        os._exit(_BROKEN)
    os._exit(0)  # whatever the engine's thread is doing


def main() -> None:
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    frames = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    questions = iter(frames)
    first = next(questions)
    outbox = Outbox(frames, lost=partial(os._exit, _BROKEN))
    server: Future[CommandServer] = Future()
    listening = threading.Thread(target=_listen, args=(questions, server), name="listener", daemon=True)
    listening.start()
    try:
        made = _begin(first["start"], outbox)
    except Exception as error:
        log.exception("there is no engine")
        outbox.answer(partial(_refusal, first["ask"], error))
        outbox.close()
        os._exit(1)
    ready = {"to": first["ask"], "is": made.ready()}
    outbox.answer(lambda: ready)
    server.set_result(made)
    listening.join()


if __name__ == "__main__":
    main()
