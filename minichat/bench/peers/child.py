"""The process of an engine: reads lines of JSON, and answers each with a line of JSON.

The first line is the job. Each further line is [prompts, counts]. Engines print to standard output, even
from C, so the answers get a descriptor of their own. If the benchmark is killed, its end of the standard
input is closed: this process ends then, and those that the engine started.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from queue import SimpleQueue
from typing import Any


def main(runner: str) -> None:
    sys.path.pop(0)  # the folder of this file
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    try:
        version, generate = runpy.run_path(runner)["opened"](json.loads(lines.get()))
        answer({"version": version})
        while True:
            prompts, counts = json.loads(lines.get())
            cpu, began = time.process_time(), time.perf_counter()
            lengths = generate(prompts, counts)
            spent = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}
            answer({"lengths": lengths, **spent})
    except Exception as error:  # any error of another engine is reported by its name
        traceback.print_exc()  # before the answer, after which this process is killed
        answer({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


def _read(lines: "SimpleQueue[str]") -> None:
    with os.fdopen(os.dup(0)) as given:
        for line in given:
            lines.put(line)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # PeerProcess gave it a group of its own


if __name__ == "__main__":
    main(sys.argv[1])
