"""An engine's child process: `python -m engine.host.child FD PIPE AHEAD`; PIPE may be "".

It also ends when the pipe closes: its other end belongs to the process that started it, if the parent is on
another machine. AHEAD: what it does before its configuration is here (`Ahead` in launching.py), as JSON.
"""

import faulthandler
import gc
import json
import os
import sys
import threading

from engine.generated import kept_code


def main() -> None:
    faulthandler.enable()
    gc.disable()  # startup objects are permanent, and each collection would traverse all of them
    need_folder()
    kept_code.begin()
    connection, pipe, ahead = sys.argv[1:]
    device, pinned, tp, pp = json.loads(ahead)
    if pipe:
        threading.Thread(target=_end_with, args=(int(pipe),), name="lifeline", daemon=True).start()
    running = threading.Thread(target=_run, args=(int(connection),), name="process")
    if not device:
        running.start()
    else:
        from engine.distributed.crews.started import RankCount, start_early
        from engine.early import import_torch, prepare_gpu

        start_early(RankCount(tp, pp, device))
        prepare_gpu(device, pinned)
        running.start()
        import_torch()
    running.join()
    sys.exit(1)  # its exception is in the log


def need_folder() -> None:
    """Leave a current folder that was deleted: torch's libraries would end the process."""
    try:
        os.getcwd()
    except OSError:
        os.chdir("/")


def _run(connection: int) -> None:
    from engine.host.child_engine import run

    run(connection)


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
