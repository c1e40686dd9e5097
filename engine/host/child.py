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
from base64 import b64decode
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from engine import wire
from engine.codec import codec
from engine.core import Engine
from engine.errors import EngineError
from engine.events import log
from engine.host.frames import Frames
from engine.host.outbox import Outbox
from engine.host.thread import EngineThread
from engine.snapshot import Speeds

_BROKEN = 70  # the exit code where something is wrong in here: the log says what


class Desk:
    """Does what the parent asks, and answers by the number of the question."""

    def __init__(self, engine: Engine, outbox: Outbox) -> None:
        self._engine, self._outbox = engine, outbox
        self._host = EngineThread(engine)
        self._between_steps: dict[str, Callable[..., Any]] = {
            "submit": self._submit,
            "fork": self._fork,
            "update": self._update,
            "abort": self._abort,
            "preempt": engine.preempt,
            "set_switch": engine.set_switch,
            "set_quantization": engine.set_quantization,
            "cancel_quantization": engine.cancel_quantization,
            "set_kv_scheme": engine.set_kv_scheme,
            "warm": self._host.warm,
            "snapshot": engine.snapshot,
        }

    def ready(self) -> dict[str, Any]:
        """What the parent must know to write prompts by itself, and the first picture."""
        tokenizer, snapshot = self._engine.tokenizer, self._host.snapshot()
        return {
            "tokenizer": None if tokenizer.folder is None else str(tokenizer.folder),
            "vocab": tokenizer.vocab_size,
            "snapshot": wire.encode_snapshot(snapshot),
        }

    def take(self, question: dict[str, Any]) -> None:
        """Waits for nothing."""
        number, what, values = question["ask"], question["what"], question["with"]
        if what == "speeds":  # they are measured beside the steps
            answer: Future[Any] = Future()
            threading.Thread(target=_fulfil, args=(answer, self._engine.runner.speeds), daemon=True).start()
        else:
            replies = {"reply": number} if what in ("submit", "fork") else {}
            work = partial(self._between_steps[what], **replies, **values)
            if given := (values.get("params") or values.get("changes") or {}).get("grammar"):
                answer = Future()
                aside = partial(self._with_grammar, given, work)
                threading.Thread(target=_fulfil, args=(answer, aside), daemon=True).start()
            else:
                answer = self._host.later(work)
        answer.add_done_callback(lambda done: self._outbox.answer(partial(_answer, number, what, done)))

    def _with_grammar(self, given: Any, work: Callable[[], Any]) -> Any:
        """Compiles it first, beside the steps."""
        self._host.check_grammar(wire.changes_from_json({"grammar": given})["grammar"])
        return self._host.later(work).result()

    # On the engine's thread

    def _submit(self, reply: int, prompt: list[int], params: dict[str, Any], salt: str, **how: Any) -> int:
        tell = partial(self._outbox.delta, reply)
        return self._engine.submit(prompt, wire.params_from_json(params), tell, salt=b64decode(salt), **how)

    def _fork(self, reply: int, id: int, params: dict[str, Any] | None) -> tuple[int, int]:
        new = None if params is None else wire.params_from_json(params)
        child = self._engine.fork(id, partial(self._outbox.delta, reply), new)
        return child, self._engine.length(child)

    def _update(self, id: int, changes: dict[str, Any]) -> None:
        self._engine.update(id, **wire.changes_from_json(changes))

    def _abort(self, ids: list[int]) -> None:
        for id in ids:
            self._engine.abort(id)


def _fulfil(answer: Future[Any], work: Callable[[], Any]) -> None:
    try:
        answer.set_result(work())
    except Exception as error:  # it belongs to whoever asked
        answer.set_exception(error)


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "snapshot": wire.encode_snapshot,
    "speeds": codec(Speeds).write,
}


def _answer(number: int, what: str, done: Future[Any]) -> dict[str, Any]:
    error = done.exception()
    if error is not None:
        return {"to": number, "error": wire.encode_error(_of_engine(error))}
    result = done.result()
    return {"to": number, "is": _WRITERS[what](result) if what in _WRITERS else result}


def _of_engine(error: BaseException) -> EngineError:
    return error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {error}")


def _begin(values: dict[str, Any], outbox: Outbox) -> Desk:
    gc.disable()  # what is made now stays, and each collection would walk over all of it
    from engine.start import start  # torch comes when somebody listens already: the parent may end meanwhile

    engine = start(wire.config_from_json(values["config"]), outbox.progress)
    engine.bus.subscribe(outbox.event)
    gc.collect()
    gc.freeze()  # or each collection walks all of torch while a step waits
    gc.enable()
    return Desk(engine, outbox)


def _listen(questions: Iterable[Any], desk: Future[Desk]) -> None:
    try:
        for question in questions:
            desk.result().take(question)
    except Exception:
        log.exception("a question cannot be understood")
        os._exit(_BROKEN)
    os._exit(0)  # whatever the engine's thread is doing


def main() -> None:
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    frames = Frames(socket.socket(fileno=int(sys.argv[1])))
    questions = iter(frames)
    first = next(questions)
    outbox = Outbox(frames, lost=partial(os._exit, _BROKEN))
    desk: Future[Desk] = Future()
    listening = threading.Thread(target=_listen, args=(questions, desk), name="listener", daemon=True)
    listening.start()
    try:
        made = _begin(first["with"], outbox)
    except Exception as error:
        log.exception("there is no engine")
        failed = {"to": first["ask"], "error": wire.encode_error(_of_engine(error))}
        outbox.answer(lambda: failed)
        outbox.close()
        os._exit(1)
    ready = {"to": first["ask"], "is": made.ready()}
    outbox.answer(lambda: ready)
    desk.set_result(made)
    listening.join()


if __name__ == "__main__":
    main()
