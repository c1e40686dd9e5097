"""Runs eight chats over all tiers until it is killed; prints each reply as it is finished.

Arguments: the folder of the disk tier, and the number of the first turn.
"""

import sys
from pathlib import Path

from engine.api.params import SamplingParams
from tests.engine.ledger import alone
from tests.outputs import Output
from tests.tiers.disk_engine import disk_engine

CHATS = 8
REPLY = 6
TURNS = 10  # then the chats start again


def message(chat: int, turn: int) -> list[int]:
    """Return what the user writes in a turn. All chats start with the same system prompt."""
    system = [3] * 20 if turn == 0 else []
    return [*system, *((chat * 7 + turn * 13 + at) % 900 for at in range(12 + chat + turn))]


def history(chat: int, turn: int) -> list[int]:
    """Return the prompt of a turn: all messages and right replies before it."""
    tokens: list[int] = []
    for each in range(turn):
        tokens += message(chat, each)
        tokens += alone(tokens, REPLY)
    return tokens + message(chat, turn)


def main(folder: Path, first: int) -> None:
    with disk_engine(folder, slots=64, blocks=40, host=16) as (engine, _):
        for turn in range(first, 10_000):
            outputs = [Output() for _ in range(CHATS)]
            for chat, output in enumerate(outputs):
                params = SamplingParams(max_tokens=REPLY, seed=0)
                engine.submit(history(chat, turn % TURNS), params, output, chat=f"chat {chat}")
            while engine.busy:
                engine.step()
            for chat, output in enumerate(outputs):
                print(chat, turn, *output.tokens, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
