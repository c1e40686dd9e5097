"""An engine killed at any moment, with eight chats in all tiers, makes no later reply wrong."""

import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.kv.tiers.disk_index import DiskIndex
from tests.engine.ledger import alone
from tests.tiers.chats_child import CHATS, REPLY, TURNS, history

ROOT = Path(__file__).parents[2]
ROOM = 64 * 4096


def lives(folder: Path, count: int, seed: int) -> int:
    """Kill that many engines, each after some replies and a random while. Returns the number of replies."""
    rng, turn, replies = random.Random(seed), 0, 0
    for _ in range(count):
        args = [sys.executable, "-m", "tests.tiers.chats_child", str(folder), str(turn)]
        with subprocess.Popen(args, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            left, killer = rng.randrange(1, 60), None
            for line in child.stdout:
                if not line.endswith("\n"):
                    break  # killed while it printed
                chat, turn, *tokens = map(int, line.split())
                assert tokens == alone(history(chat, turn % TURNS), REPLY), f"turn {turn} of chat {chat}"
                replies, left = replies + 1, left - 1
                if not left:
                    killer = threading.Timer(rng.random() * 0.02, child.kill)
                    killer.start()
            assert killer is not None, "the engine ended before it was killed"
            killer.join()
            assert child.wait(30) == -9
        _check(folder)
    return replies


def _check(folder: Path) -> None:
    """Check that the index is intact, and that there are no files besides those it names."""
    index = DiskIndex(folder, ROOM)
    slots = index.slots(4096)
    index.close()
    assert len(slots) <= 64
    with sqlite3.connect(folder / "index.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        known = {row[0] for row in db.execute("SELECT id FROM segments")}
    db.close()
    assert {int(each.stem) for each in folder.glob("*.kv")} <= known
    assert {each.name for each in folder.iterdir() if each.suffix != ".kv"} <= {
        "index.sqlite", "index.sqlite-wal", "index.sqlite-shm"
    }  # fmt: skip


@pytest.mark.timeout(120)
def test_three_killed_engines(tmp_path: Path) -> None:
    assert lives(tmp_path / "kv", 3, seed=1) >= 3


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_killed_engines(tmp_path: Path) -> None:
    assert lives(tmp_path / "kv", 200, seed=2) > 200 * CHATS
