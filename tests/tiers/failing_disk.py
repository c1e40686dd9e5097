"""Replies over a disk that fails while the engine runs. Run with a mount namespace of its own: it mounts.

Arguments: the folder to mount a file system on, and how it fails.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from engine.kv.tiers import disk
from engine.kv.tiers.disk import DiskTier
from engine.serving.engine import Engine
from tests.engine.ledger import alone
from tests.tiers.disk_engine import ask, computed, disk_engine

LONG = [*range(100, 180)]  # a prompt of five blocks
ROOM = 2**20  # bytes of the file system


def mount(*args: object) -> None:
    subprocess.run(["mount", *map(str, args)], check=True)


def fill(folder: Path) -> None:
    with (folder / "others").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def fail(folder: Path, how: str) -> None:
    match how:
        case "full":
            fill(folder)
        case "read-only":
            mount("--bind", folder, folder)  # on top: files that are open can still be written
            mount("-o", "remount,bind,ro", folder)
        case "vanished":  # files that are open stay
            subprocess.run(["umount", "-l", str(folder)], check=True)


def heal(folder: Path, how: str) -> None:
    match how:
        case "full":
            (folder / "others").unlink()
        case "read-only":
            subprocess.run(["umount", str(folder)], check=True)


def right_replies(engine: Engine, tier: DiskTier, first: int) -> list[str]:
    """Return what the tier said was wrong after each reply."""
    problems = []
    for each in range(first, first + 3):
        assert ask(engine, [each, *LONG], chat="a") == alone([each, *LONG], 4), "a wrong reply"
        tier.flush()
        problems.append(tier.problem)
    return problems


def main(folder: Path, how: str) -> None:
    disk.PAUSE = 0.0
    mount("-t", "tmpfs", "-o", f"size={ROOM}", "none", folder)
    with disk_engine(folder / "kv") as (engine, tier):
        ask(engine, LONG, chat="a")
        tier.flush()
        fail(folder, how)
        print(next(filter(None, right_replies(engine, tier, 1)), ""))
        engine.scheduler.pool.forget_all()
        before = computed(engine)
        assert ask(engine, LONG, chat="a") == alone(LONG, 4)
        print("found" if computed(engine) - before < len(LONG) else "computed")
        heal(folder, how)
        print(right_replies(engine, tier, 4)[-1] or "stores again")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
