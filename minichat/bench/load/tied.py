"""`python -m minichat.bench.load.tied serve ...`: minichat, ended when its standard input is closed.

A killed benchmark cannot stop its server, which would keep its memory and its share of the processor. The
system closes the benchmark's end of the pipe.
"""

import os
import signal
import sys
import threading

from minichat.__main__ import main


def _end_with_input() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever written
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.exit(main())
