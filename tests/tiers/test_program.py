"""The disk tier in the program: which room is used, a chat that is deleted, and `minichat cache`."""

import argparse
import asyncio
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.api.config import EngineConfig
from engine.api.places import DiskRoom
from engine.kv.tiers.disk_index import DiskIndex, delete_chat
from minichat.clients.local import LocalBackend
from minichat.commands import cache
from minichat.models.progress import size
from minichat.shell import disk_room as rooms
from minichat.shell.disk_room import disk_room
from tests.tiers.test_disk_index import STRIDE, kept, name, put


def usage(free: float) -> SimpleNamespace:
    return SimpleNamespace(free=free)


@pytest.mark.parametrize(("free", "room"), [(1e12, "2.000"), (5e9, "0.500"), (1e8, None)])
def test_auto_takes_two_gigabytes_or_a_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, room: str | None
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(free))
    folder = tmp_path / "not" / "there"
    assert disk_room("auto", folder) == (room and f"{folder}:{room}")


def test_auto_keeps_nothing_where_it_may_not_write_or_over_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda place, mode: False)
        assert disk_room("auto", tmp_path) is None
    monkeypatch.setattr(rooms, "networked", lambda place: "nfs4")
    assert disk_room("auto", tmp_path) is None
    assert disk_room("/data:5", tmp_path) == "/data:5" and disk_room("off", tmp_path) is None


def test_auto_keeps_nothing_where_a_file_is_in_the_way(tmp_path: Path) -> None:
    assert disk_room("auto", tmp_path) is not None
    (tmp_path / "file").write_text("")
    (tmp_path / "minichat-kv").write_text("")
    assert disk_room("auto", tmp_path / "file" / "minichat") is disk_room("auto", tmp_path) is None


def test_auto_leaves_an_index_of_another_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskRoom.parse(f"{tmp_path}:1")
    put(DiskIndex(disk.folder, disk.nbytes), 1)
    assert disk_room("auto", tmp_path) is not None
    monkeypatch.setattr(os, "access", lambda place, mode: "index" not in Path(place).name)
    assert disk_room("auto", tmp_path) is None


def test_auto_keeps_nothing_where_another_program_locks_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "_BUSY", 0.01)
    disk = DiskRoom.parse(f"{tmp_path}:1")
    put(DiskIndex(disk.folder, disk.nbytes), 1)
    with closing(sqlite3.connect(disk.folder / "index.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert disk_room("auto", tmp_path) is None
    assert disk_room("auto", tmp_path) is not None


def test_a_folder_that_cannot_be_read_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.run(argparse.Namespace(folder="x" * 300, clear=False, json=False)) == 1
    assert "/minichat-kv: File name too long" in capsys.readouterr().err


def test_a_deleted_chat_is_forgotten_without_an_engine(tmp_path: Path) -> None:
    disk = DiskRoom.parse(f"{tmp_path}:1")
    index = DiskIndex(disk.folder, disk.nbytes)
    put(index, 1, 2)
    index.own([name(1)], "7 1.5")
    backend = LocalBackend(EngineConfig(model="pocket"), disk=disk)
    asyncio.run(backend.forget_chat("7 1.5"))
    assert kept(index) == {2}


def test_a_chat_that_cannot_be_forgotten_says_why(tmp_path: Path) -> None:
    """A damaged index is replaced, but one that is out of reach is not."""
    disk = DiskRoom.parse(f"{tmp_path}:1")
    (disk.folder / "index.sqlite").mkdir(parents=True)
    with pytest.raises(OSError, match="Is a directory"):
        delete_chat(disk, "a")
    (disk.folder / "index.sqlite").rmdir()
    DiskIndex(disk.folder, disk.nbytes).close()
    with closing(sqlite3.connect(disk.folder / "index.sqlite")) as db:
        db.execute("DROP TABLE owners")
    with pytest.raises(OSError, match="no such table") as raised:
        delete_chat(disk, "a")
    assert raised.value.filename == str(disk.folder)


def test_nothing_is_created_for_a_chat_that_was_never_kept(tmp_path: Path) -> None:
    backend = LocalBackend(EngineConfig(model="pocket"), disk=DiskRoom.parse(f"{tmp_path}:1"))
    asyncio.run(backend.forget_chat("7 1.5"))
    assert not list(tmp_path.iterdir())


def test_the_cache_command_shows_and_clears(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*, clear: bool = False, json: bool = False) -> str:
        assert cache.run(argparse.Namespace(folder=str(tmp_path), clear=clear, json=json)) == 0
        return capsys.readouterr().out

    assert "no blocks in" in run()
    nothing = {"folder": str(tmp_path / "minichat-kv"), "blocks": 0, "bytes": 0, "chats": 0}
    assert json.loads(run(json=True)) == nothing | {"oldest": None, "cleared": False}
    assert cache.run(argparse.Namespace(folder=str(tmp_path / "typo"), clear=False, json=False)) == 1
    assert capsys.readouterr().err == f"minichat: there is no folder {tmp_path / 'typo'}\n"
    disk = DiskRoom.parse(f"{tmp_path}:1")
    index = DiskIndex(disk.folder, disk.nbytes)
    put(index, 1, 2, 3)
    assert f"blocks  3 blocks, {size(index.contents().nbytes)}\n" in run(), "a server's blocks"
    index.own([name(1), name(2)], "a")
    assert 0 < index.contents().nbytes < 50_000, "less than a tenth of a megabyte is not 0.0 MB"
    assert f"3 blocks of 1 chat, {size(index.contents().nbytes)}\n" in run() and kept(index) == {1, 2, 3}
    there = json.loads(run(json=True))
    assert (there["blocks"], there["bytes"], there["chats"]) == (3, index.contents().nbytes, 1)
    assert there["oldest"] == index.contents().oldest
    index.put([name(4)], 2 * STRIDE, lambda at, slot: b"sum", [])
    assert "in 2 sizes: an engine uses those of its own\n" in run(), "of another scheme of the cache"
    assert "removed 4 blocks" in run(clear=True) and not kept(index)
    put(index, 1)
    removed = json.loads(run(clear=True, json=True))
    assert (removed["blocks"], removed["cleared"]) == (1, True) and not kept(index)
