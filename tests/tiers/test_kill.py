"""An engine killed at any moment, with eight chats in all tiers, makes no later reply wrong."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.kv.tiers.disk_index import DiskIndex
from tests.engine.ledger import alone
from tests.tiers.chats_child import CHATS, REPLY, TURNS, history

ROOT = Path(__file__).parents[2]
ROOM = 64 * 4096


class Chats:
    """Eight chats whose engines are killed one after the other, over one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._turn = folder, 0

    def live(self, replies: int, microseconds: int) -> None:
        """Start an engine, and kill it so long after its first replies. All of them must be right."""
        args = [sys.executable, "-m", "tests.tiers.chats_child", str(self._folder), str(self._turn)]
        with subprocess.Popen(args, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            killer = threading.Timer(microseconds / 1e6, child.kill)
            for count, line in enumerate(child.stdout, 1):
                if not line.endswith("\n"):
                    break  # killed while it printed
                chat, self._turn, *tokens = map(int, line.split())
                turn = self._turn % TURNS
                assert tokens == alone(history(chat, turn), REPLY), f"turn {turn} of chat {chat}"
                if count == replies:
                    killer.start()
            assert killer.ident is not None, "the engine ended before it was killed"
            killer.join()
            assert child.wait(30) == -9
        _check(self._folder)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Chats:
    return Chats(tmp_path_factory.mktemp("chats") / "kv")


moments = given(replies=st.integers(1, 8 * CHATS), microseconds=st.integers(0, 20_000))


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
@settings(max_examples=2, phases=[Phase.generate])
@moments
def test_two_killed_engines(chats: Chats, replies: int, microseconds: int) -> None:
    chats.live(replies, microseconds)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=200, phases=[Phase.generate])
@moments
def test_two_hundred_killed_engines(chats: Chats, replies: int, microseconds: int) -> None:
    chats.live(replies, microseconds)
