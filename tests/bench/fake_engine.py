"""A fake engine: it uses 5 ms of processor time for each token of its longest reply, or fails on request."""

import os
import subprocess
import sys
import time


def opened(job):
    print("loading", job["folder"])  # engines write to standard output
    if job.get("fails") == "open":
        raise RuntimeError("no such device\nand more lines")

    def generate(prompts, counts):
        if job.get("fails") == "die":
            os._exit(3)
        if job.get("fails") == "hang":
            hang(job["pids"])
        ends = time.process_time() + 0.005 * max(counts)
        while time.process_time() < ends:
            pass
        print("generated", file=sys.stderr)
        return [1 for _ in counts] if job.get("fails") == "lengths" else list(counts)

    return "Fake 1.2", generate


def hang(pids):
    """With a process of its own, as engines have. Both are named in the file."""
    own = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with open(pids, "w") as file:
        file.write(f"{os.getpid()} {own.pid}\n")
    own.wait()
