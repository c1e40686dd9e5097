"""The process of an engine: reads lines of JSON, and answers each with a line of JSON.

The first line is the job. Each further line is [prompts, counts]. Engines print to standard output, even
from C, so the answers get a descriptor of their own.
"""

import json
import os
import runpy
import sys
import time
from typing import Any


def main(runner: str) -> None:
    sys.path.pop(0)  # the folder of this file
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        version, generate = runpy.run_path(runner)["opened"](json.loads(sys.stdin.readline()))
        answer({"version": version})
        for line in sys.stdin:
            prompts, counts = json.loads(line)
            cpu, began = time.process_time(), time.perf_counter()
            lengths = generate(prompts, counts)
            spent = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}
            answer({"lengths": lengths, **spent})
    except Exception as error:  # any error of another engine is reported by its name
        answer({"error": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    main(sys.argv[1])
