"""A rank whose main thread never lets go, as in long work before its first step. Its heart beats fast."""

from typing import Any

from engine.distributed import rank


def busy(given: dict[str, Any]) -> Any:
    while True:
        pass


if __name__ == "__main__":
    rank.BEAT = 0.01
    rank.begin = busy
    rank.main()
