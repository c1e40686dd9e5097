"""Replies over a disk tier: found by later engines and by others, and right whatever happens to the files."""

import os
import random
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.kv.tiers.disk import DiskTier
from engine.kv.tiers.disk_index import DiskIndex
from engine.kv.tiers.tier import DeviceBlocks
from tests.engine.ledger import alone
from tests.examples import examples
from tests.outputs import Output
from tests.tiers.disk_engine import ask, computed, disk_engine, drain_slowly, errors
from tests.waiting import becomes

LONG = [*range(100, 180)]  # a prompt of five blocks


class OneBlock(DeviceBlocks):
    """A block of the device, and memory of its own for what is loaded."""

    numbers = (0,)

    def __init__(self) -> None:
        self.own, self.loaded = np.zeros((1, 8), np.uint8), False

    def buffer(self, count: int, nbytes: int) -> np.ndarray:
        assert self.own.shape == (count, nbytes)
        return self.own

    def write(self, data: np.ndarray, at: int = 0) -> None:
        self.loaded = data is self.own

    def read(self) -> Callable[[], np.ndarray]:
        return lambda: np.full((1, 8), 7, np.uint8)


def test_the_next_engine_finds_the_blocks_of_a_chat(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as (engine, _):
        reply = ask(engine, LONG)
    with disk_engine(tmp_path) as (engine, tier):
        assert tier.used == 5
        more = [*LONG, *reply, 7, 8, 9]
        assert ask(engine, more) == alone(more, 4)
        assert computed(engine) < len(more) - 5 * 16 + 4


def test_the_blocks_of_a_beam_search_are_kept_too(tmp_path: Path) -> None:
    params, output = SamplingParams(max_tokens=8, beams=3), Output()
    with disk_engine(tmp_path) as (engine, _):
        engine.submit(LONG, params, output)
        drain_slowly(engine)
    with disk_engine(tmp_path) as (engine, tier):
        assert tier.used >= 5
        more = [*LONG, *output.tokens, 7]
        assert ask(engine, more) == alone(more, 4)
        assert computed(engine) < len(more) - 5 * 16 + 4


def test_engines_share_blocks_while_they_run(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as (one, tier), disk_engine(tmp_path) as (other, mine):
        ask(one, LONG)
        tier.flush()

        def found() -> bool:
            mine.holds([])
            mine.flush()
            return mine.used == 5

        assert becomes(found)
        assert ask(other, LONG) == alone(LONG, 4)
        assert computed(other) < 30


def test_the_blocks_shown_are_those_on_disk_while_nothing_asks_for_one(tmp_path: Path) -> None:
    """`minichat cache --clear` beside an engine whose snapshots are taken."""
    with disk_engine(tmp_path) as (engine, tier):
        ask(engine, LONG)
        tier.flush()
        assert engine.snapshot().tiers[0].in_use == 5
        with closing(DiskIndex(tmp_path, 64 * 4096)) as index:
            index.clear()
        assert becomes(lambda: engine.snapshot().tiers[0].in_use == 0)


def test_names_of_another_model_scheme_or_tenant_are_never_found(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as (engine, _):
        ask(engine, LONG)
    for model, weights, kv in (
        (b"other", "none", "none"),
        (b"ledger", "int4", "none"),
        (b"ledger", "none", "int8"),
    ):
        with disk_engine(tmp_path) as (engine, _):
            engine.scheduler.kv.identify(model, weights)
            engine.scheduler.kv.kv_scheme = kv
            ask(engine, LONG)
            assert computed(engine) == len(LONG) + 3


def test_an_engine_without_an_identity_finds_nothing(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as (engine, _):
        ask(engine, LONG)
    with disk_engine(tmp_path) as (engine, _):
        engine.scheduler.kv.hide_names(True)
        ask(engine, LONG)
        assert computed(engine) == len(LONG) + 3


def _flip(folder: Path) -> None:
    for file in folder.glob("*.kv"):
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), 64):
            data[at] ^= 1
        file.write_bytes(data)


def _swap_slots(folder: Path) -> None:
    """Put each block where another belongs."""
    for file in folder.glob("*.kv"):
        data = file.read_bytes()
        slots = [data[at : at + 4096] for at in range(0, len(data), 4096)]
        file.write_bytes(b"".join(reversed(slots)))


def _truncate(folder: Path) -> None:
    for file in folder.glob("*.kv"):
        os.truncate(file, 100)


def _remove_files(folder: Path) -> None:
    for file in folder.glob("*.kv"):
        file.unlink()


def _corrupt_index(folder: Path) -> None:
    for each in folder.glob("index.sqlite*"):
        each.write_bytes(b"\x00" * 100)


def _forge_slots(folder: Path) -> None:
    with sqlite3.connect(folder / "index.sqlite") as db:
        db.execute("UPDATE blocks SET slot = slot + 100, sum = x'00'")
    db.close()


@pytest.mark.parametrize(
    "damage", [_flip, _swap_slots, _truncate, _remove_files, _corrupt_index, _forge_slots]
)
def test_damaged_files_cost_time_and_never_a_wrong_token(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with disk_engine(tmp_path) as (engine, _):
        ask(engine, LONG)
    damage(tmp_path)
    with disk_engine(tmp_path) as (engine, tier):
        assert ask(engine, LONG) == alone(LONG, 4)
        tier.flush()
        assert ask(engine, [1, *LONG]) == alone([1, *LONG], 4)
    assert "damaged" in caplog.text
    with disk_engine(tmp_path) as (engine, _):
        ask(engine, LONG)
        assert computed(engine) < len(LONG), "the blocks were not stored again"


def test_a_block_damaged_while_the_engine_runs_is_computed_again(tmp_path: Path) -> None:
    with disk_engine(tmp_path, blocks=8) as (engine, tier):
        seen = errors(engine)
        ask(engine, LONG)
        tier.flush()
        _flip(tmp_path)
        engine.scheduler.pool.forget_all()
        assert ask(engine, LONG) == alone(LONG, 4)
        assert len(seen) == 1 and "is damaged or gone" in seen[0]
        tier.flush()
        engine.scheduler.pool.forget_all()
        before = computed(engine)
        ask(engine, LONG)
        assert computed(engine) - before < len(LONG)


def test_an_unexpected_error_of_the_writer_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(os, "pwrite", broken)
    with disk_engine(tmp_path) as (engine, tier):
        assert ask(engine, LONG) == alone(LONG, 4)
        tier.flush()
        assert tier.problem == f"{tmp_path}: a bug" and not tier.used
    assert "ZeroDivisionError" in caplog.text


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.kv.tiers.disk.PAUSE", 0.0)
    folder = tmp_path / "kv"
    with disk_engine(folder) as (engine, tier):
        ask(engine, LONG)
        tier.flush()
        shutil.rmtree(folder)
        for first in range(1, 5):
            assert ask(engine, [first, *LONG]) == alone([first, *LONG], 4)
            tier.flush()
        assert not tier.problem and folder.is_dir()
    with disk_engine(folder) as (engine, _):
        ask(engine, [4, *LONG])
        assert computed(engine) < len(LONG)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="ermission"):
        DiskTier(tmp_path / "kv", 10_000, lambda: 128)


def test_a_slow_disk_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    write = os.pwrite

    def slow(*args: object) -> int:
        assert gate.wait(20)
        return write(*args)

    monkeypatch.setattr(os, "pwrite", slow)
    with disk_engine(tmp_path) as (engine, tier):
        for first in range(3):
            assert ask(engine, [first, *LONG]) == alone([first, *LONG], 4)
        assert tier.used == 15
        engine.scheduler.pool.forget_all()
        before = computed(engine)
        assert ask(engine, [1, *LONG]) == alone([1, *LONG], 4)
        assert computed(engine) - before < len(LONG), "blocks that wait to be written were not found"
        gate.set()


def test_a_deleted_chat_leaves_no_block_behind(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as (engine, tier):
        ask(engine, LONG, chat="a")
        ask(engine, [*LONG[:32], *range(50)], chat="b")
        tier.flush()
        with_b = tier.used
        assert DiskIndex(tmp_path, 64 * 4096).delete_chat("a") == 3
        ask(engine, [*LONG, *range(20)], chat="a")  # its reply was still running
        tier.flush()
    with disk_engine(tmp_path) as (_, tier):
        assert tier.used == with_b - 3


@pytest.mark.parametrize("stored_first", [False, True])
def test_a_block_of_a_deleted_chat_is_not_kept_in_either_order(tmp_path: Path, stored_first: bool) -> None:
    """A copy to disk takes its time, so it is written before or after the engine says whose block it is."""
    tier = DiskTier(tmp_path, 64 * 4096, lambda: 8)
    DiskIndex(tmp_path, 64 * 4096).delete_chat("a")
    block = OneBlock()
    if stored_first:
        tier.store([b"name"], block).result()
        tier.flush()
    tier.own([b"name"], "a")
    tier.flush()
    if not stored_first:
        tier.store([b"name"], block).result()
        tier.flush()
    assert tier.used == 0 and tier.holds([b"name"]) == 0
    tier.store([b"name"], block).result()  # for a request of no chat
    tier.flush()
    assert tier.used == 1
    tier.close()


def test_a_chat_larger_than_the_memory_that_waits_is_stored_from_its_start(tmp_path: Path) -> None:
    """The rest follows with the next replies."""
    with disk_engine(tmp_path, waiting=3 * 4096) as (engine, tier):
        for stored in (3, 5):
            ask(engine, LONG)
            tier.flush()
            assert tier.used == stored
    with disk_engine(tmp_path) as (engine, _):
        assert ask(engine, [*LONG, 1, 2]) == alone([*LONG, 1, 2], 4)
        assert computed(engine) < 10


@pytest.mark.parametrize("written", [False, True])
def test_a_block_is_read_into_memory_that_the_device_copies_from(tmp_path: Path, written: bool) -> None:
    """Its own pinned memory, for a GPU: another copy would cost as much as reading."""
    tier, block = DiskTier(tmp_path, 64 * 4096, lambda: 8), OneBlock()
    tier.store([b"name"], block).result()
    if written:
        tier.flush()
    tier.load([b"name"], block).result()
    tier.close()
    assert block.loaded and block.own.tolist() == [[7] * 8]


@pytest.mark.parametrize("broken", [False, True])
def test_a_load_in_parts_ends_with_its_last_one(tmp_path: Path, broken: bool) -> None:
    with disk_engine(tmp_path) as (engine, _):
        ask(engine, LONG)
    if broken:
        _truncate(tmp_path)
    with disk_engine(tmp_path, part=2 * 4096) as (engine, _):
        failed = errors(engine)
        assert ask(engine, [*LONG, 1, 2]) == alone([*LONG, 1, 2], 4)
        assert (computed(engine) < 10) is not broken and bool(failed) is broken


def test_requests_of_a_warm_up_leave_nothing_on_disk(tmp_path: Path) -> None:
    with disk_engine(tmp_path) as (engine, tier):
        engine.submit(LONG, SamplingParams(max_tokens=2), Output(), chat=None)
        drain_slowly(engine)
        tier.flush()
        assert tier.used == 0


@st.composite
def sessions(draw: st.DrawFn) -> list[tuple[int, list[list[int]]]]:
    """What is done to the files before each session, and the prompts of the session."""
    prompts = st.lists(
        st.builds(
            lambda shared, own: [7] * shared + own,
            st.sampled_from([0, 16, 32, 40, 48]),
            st.lists(st.integers(0, 3), min_size=1, max_size=20),
        ),
        min_size=1,
        max_size=4,
    )
    return draw(st.lists(st.tuples(st.integers(0, 2**30), prompts), min_size=1, max_size=4))


def _meddle(folder: Path, seed: int) -> None:
    """Change a random part of a random file, or nothing."""
    rng = random.Random(seed)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    if not files or rng.random() < 0.4:
        return
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    match rng.randrange(3):
        case 0:
            file.unlink()
        case 1:
            file.write_bytes(data[: rng.randrange(len(data) + 1)])
        case 2 if data:
            for _ in range(rng.randrange(1, 200)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            file.write_bytes(data)


@examples(12)
@given(sessions(), st.sampled_from([4, 16, 64]), st.sampled_from([6, 64]))
def test_random_sessions_over_files_that_change_give_the_right_replies(
    work: list[tuple[int, list[list[int]]]], slots: int, blocks: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for seed, prompts in work:
            _meddle(Path(folder) / "kv", seed)
            with disk_engine(Path(folder) / "kv", slots=slots, blocks=blocks) as (engine, _):
                for prompt in prompts:
                    assert ask(engine, prompt) == alone(prompt, 4)
