"""One of the processes that share a model: `python -m engine.distributed.rank WIRES`. team.py starts them.

It repeats what rank 0 does: the same calls on its own runner, in the same order. It ends with the engine.
"""

import faulthandler
import gc
import json
import logging
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from engine.api.errors import EngineError
from engine.distributed.waiting import readable
from engine.generated import kept_code
from engine.timeline import timed

if TYPE_CHECKING:
    from engine.distributed.loop import RankLoop

BEAT = 0.5  # seconds between two heartbeats
_BROKEN = 70  # the exit code for an internal error


def keep_alive(pulse: socket.socket) -> None:
    """Send heartbeats, on a thread of its own: slow work is not death. End with the engine."""
    pulse.setblocking(False)
    while True:
        if readable(pulse.fileno(), BEAT):
            os._exit(0)  # the engine sends nothing here, so this is its end
        try:
            pulse.send(b".")
        except BlockingIOError:
            continue  # the engine is stopped
        except OSError:
            os._exit(0)


def begin(given: dict[str, Any]) -> "RankLoop":
    """Load this rank's share, and agree with the engine on the cache."""
    gc.disable()  # as in the engine's process: startup objects are permanent
    kept_code.begin()
    # Imported here: torch takes seconds, and the heartbeats have started.
    from engine.early import import_torch, prepare_gpu

    wait_for_imports = prepare_gpu(given["device"])
    import_torch()
    with timed("the engine's modules"):
        from engine.distributed.setup import connect
    with timed("waiting for Triton"):
        wait_for_imports()
    loop = connect(given)
    kept_code.end()
    gc.collect()
    gc.freeze()
    gc.enable()
    return loop


def _end_with(pipe: int) -> None:
    """End with the process that has the other end."""
    os.read(pipe, 1)
    os._exit(0)


def main() -> None:
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    given = json.loads(sys.argv[1])
    pulse = socket.socket(fileno=given["pulse"])
    threading.Thread(target=keep_alive, args=(pulse,), name="heartbeat", daemon=True).start()
    if "lifeline" in given:
        threading.Thread(target=_end_with, args=(given["lifeline"],), name="lifeline", daemon=True).start()
    try:
        loop = begin(given)
    except EngineError as error:
        logging.getLogger("engine").error("%s", error)
        from engine.distributed.link import REFUSED

        os._exit(REFUSED)
    try:
        loop.run()
    except EOFError:
        os._exit(0)
    except Exception:
        logging.getLogger("engine").exception("the rank has failed")
        os._exit(_BROKEN)


if __name__ == "__main__":
    main()
