"""A disk that fails while the engine runs: a sentence, right replies, and blocks are stored once it works."""

import os
import shutil
import sqlite3
import subprocess
import sys
from errno import ENOSPC
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.assembly import _disk
from engine.kv.tiers.disk import DiskTier
from engine.kv.tiers.disk_index import reason_of
from engine.models.identity import files_hash
from tests.cases import soak
from tests.engine.ledger import alone
from tests.tiers.disk_engine import ask, computed, disk_engine
from tests.tiers.failing_disk import LONG, right_replies

ROOT = Path(__file__).parents[2]
APART = ("unshare", "--map-root-user", "--mount")  # with mounts of its own


@cache
def may_mount() -> bool:
    try:
        return subprocess.run([*APART, "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("how", "problem", "found"),
    [
        ("full", "No space left on device", "found"),
        *soak(("read-only", "Read-only file system", "found")),
        ("vanished", "No such file or directory", "computed"),
    ],
)
def test_a_file_system_that_fails_while_chats_run(tmp_path: Path, how: str, problem: str, found: str) -> None:
    if not may_mount():
        pytest.skip("this user may not mount file systems")
    args = [*APART, sys.executable, "-m", "tests.tiers.failing_disk", str(tmp_path), how]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{tmp_path / 'kv'}: {problem}", found, "stores again"]


def test_an_index_that_is_read_only_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kv.tiers.disk.PAUSE", 0.0)
    with disk_engine(tmp_path) as (engine, tier):
        ask(engine, LONG)
        tier.flush()
        assert tier._index is not None
        tier._index._db.execute("PRAGMA query_only = 1")
        assert right_replies(engine, tier, 1)[-1] == f"{tmp_path}: attempt to write a readonly database"
        engine.scheduler.pool.forget_all()
        before = computed(engine)
        ask(engine, LONG)
        assert computed(engine) - before < len(LONG)
        tier._index._db.execute("PRAGMA query_only = 0")
        assert not right_replies(engine, tier, 4)[-1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_no_longer_be_written(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as (engine, tier):
        tier.flush()
        tmp_path.chmod(0o500)
        try:
            assert right_replies(engine, tier, 1)[-1] == f"{tmp_path}: Permission denied"
        finally:
            tmp_path.chmod(0o700)


def test_room_for_less_than_a_block_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nbytes = 5_000_000
    tier = DiskTier(tmp_path, 1_000_000, lambda: nbytes)
    tier.flush()
    assert tier.size == tier.room() == 0
    assert tier.problem == f"{tmp_path}: a block takes 5.0 MB, and there is room for 1.0 MB"
    assert tier.problem in caplog.text
    nbytes = 500_000  # the cache in another scheme
    tier.reset()
    assert tier.size == 1 and not tier.problem
    tier.close()


def test_a_full_disk_has_one_reason_whichever_write_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_index = sqlite3.OperationalError("database or disk is full")
    of_index.sqlite_errorcode = sqlite3.SQLITE_FULL
    of_shared_memory = sqlite3.OperationalError("disk I/O error")
    of_shared_memory.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert reason_of(of_shared_memory, tmp_path) == "disk I/O error", "this disk has room"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20_000))
    reasons = {reason_of(each, tmp_path) for each in (of_index, of_shared_memory, OSError(ENOSPC, "full"))}
    assert reasons == {os.strerror(ENOSPC)}
    assert reason_of(sqlite3.DatabaseError("file is not a database"), tmp_path) == "file is not a database"


def test_a_full_disk_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
        raise error

    monkeypatch.setattr("engine.kv.tiers.disk_index._connected", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20_000))
    nothing: Any = None
    with pytest.raises(
        BadInput, match=r"^kv_disk: .*minichat-kv cannot hold blocks: No space left on device$"
    ):
        next(_disk(EngineConfig(model="pocket", kv_disk=f"{tmp_path}:1"), nothing, nothing, 0))


def test_a_folder_that_cannot_be_made_is_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text("{}")
    with caplog.at_level("INFO"):
        files_hash(model, weights=False, memo=tmp_path / "file" / "kv" / "hashes.json")
    assert [each.levelname for each in caplog.records] == ["INFO"], "the disk tier says it"


def test_a_full_disk_is_reported_until_a_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with disk_engine(tmp_path) as (engine, tier):
        ask(engine, LONG)
        tier.flush()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            other = [5, *LONG]
            assert ask(engine, other) == alone(other, 4)
            tier.flush()
            assert tier.problem == f"{tmp_path}: No space left on device"
            [view] = [each for each in engine.snapshot().tiers if each.name == "disk"]
            assert view.problem == tier.problem and tier.room() == 0
            tier.own([b"name"], "a chat")  # the index itself can still be written
            tier.flush()
            assert tier.problem and tier.room() == 0
            assert ask(engine, [6, *LONG]) == alone([6, *LONG], 4)
        assert tier.used == 5
        engine.scheduler.pool.forget_all()
        before = computed(engine)
        ask(engine, LONG)
        assert computed(engine) - before < len(LONG), "a full disk can still be read"


def test_blocks_are_stored_again_once_there_is_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kv.tiers.disk.PAUSE", 0.0)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with disk_engine(tmp_path) as (engine, tier):
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            ask(engine, LONG)
            tier.flush()
            assert tier.problem and not tier.used
        ask(engine, LONG)
        tier.flush()
        assert not tier.problem and tier.used == 5


def test_a_block_written_in_part_counts_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: write(file, data[:10], offset))
    with disk_engine(tmp_path) as (engine, tier):
        assert ask(engine, LONG) == alone(LONG, 4)
        tier.flush()
        assert tier.problem == f"{tmp_path}: No space left on device" and not tier.used
