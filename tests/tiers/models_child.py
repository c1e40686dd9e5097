"""Runs the turns of eight chats on a real model over all tiers until it is killed. Prints each reply,
and how many loads from host memory and from the disk there were before it ended.

Arguments: the model's folder, the folder of the disk tier, a file with the prompts of all turns, and the
number of the first turn.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from engine.api.events import Event, Transferred
from engine.api.params import SamplingParams
from tests.outputs import Output
from tests.runner.small import engine_on

REPLY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
TIERS = {"blocks": 40, "kv_host": 0.0002, "preemption": "swap"}


def main(model: Path, disk: Path, prompts: Path, first: int) -> None:
    turns: list[list[list[int]]] = json.loads(prompts.read_text())
    engine, loads = engine_on(model, kv_disk=f"{disk}:0.001", **TIERS), Counter[str]()

    def see(event: Event) -> None:
        if isinstance(event, Transferred) and event.load and not event.error:
            loads[event.tier] += 1

    engine.bus.subscribe(see)
    for turn in range(first, 10_000):
        outputs = [Output() for _ in turns[0]]
        for chat, output in enumerate(outputs):
            engine.submit(turns[turn % len(turns)][chat], REPLY, output, chat=f"chat {chat}")
        while engine.busy:
            engine.step()
        for chat, output in enumerate(outputs):
            print(chat, turn, loads["host"], loads["disk"], *output.tokens, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
