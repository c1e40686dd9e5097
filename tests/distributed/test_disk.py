"""The disk tier of ranks and stages: each keeps its share of a block. One without all is recomputed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from engine.api.events import Event, Transferred
from engine.kv.tiers import disk
from engine.kv.tiers.disk_index import DiskIndex, share_of
from engine.serving.engine import Engine
from tests.cases import soak
from tests.distributed.threads import ranked
from tests.runner.small import alone, ask, drain
from tests.waiting import LIMIT

INDEX = Path("minichat-kv", "index.sqlite")
PROMPT = [*range(3, 63)]


@contextmanager
def over_disk(model: Path, folder: Path, **ranks: int) -> Iterator[tuple[Engine, list[Transferred]]]:
    """An engine, and the loads that it ends."""
    loads = list[Transferred]()

    def see(event: Event) -> None:
        if isinstance(event, Transferred) and event.load:
            loads.append(event)

    with ranked(model, kv_disk=f"{folder}:0.1", **ranks) as engine:
        engine.bus.subscribe(see)
        yield engine, loads


def reply(engine: Engine, prompt: list[int]) -> list[int]:
    _, output = ask(engine, prompt)
    drain(engine)
    assert not output.error
    return output.tokens


@pytest.mark.parametrize("ranks", [{"tp": 2}, *soak({"tp": 1, "pp": 2})], ids=["ranks", "stages"])
def test_a_chat_resumes_in_a_new_engine_if_every_rank_has_its_share(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: dict[str, int]
) -> None:
    monkeypatch.setattr(disk, "LAST", LIMIT)  # a loaded machine may take longer than users wait
    expected = alone(llama, PROMPT).tokens
    second = [*PROMPT, *expected, 5, 6, 7]
    with over_disk(llama, tmp_path, **ranks) as (engine, _):
        assert reply(engine, PROMPT) == expected
    names = stored(tmp_path)
    others = {each + share_of(1) for each in names} & names
    assert others and len(others) * 2 == len(names), "a rank ended before it had written its shares"
    with closing(DiskIndex(tmp_path / "minichat-kv", 10**8)) as found:
        assert found.contents().blocks == len(others), "the shares of a block are counted as blocks"
    with over_disk(llama, tmp_path, **ranks) as (engine, loads):
        (tier,) = engine.snapshot().tiers
        assert tier.in_use == len(others)
        assert tier.size == 10**8 // (2 * 8192) or "pp" in ranks, "the shares of two ranks are as large"
        assert reply(engine, second) == alone(llama, second).tokens
        assert [each.error for each in loads] == [""]
    with closing(sqlite3.connect(tmp_path / INDEX)) as index, index:
        index.executemany("DELETE FROM blocks WHERE name = ?", [(each,) for each in others])
    with over_disk(llama, tmp_path, **ranks) as (engine, loads):
        assert reply(engine, second) == alone(llama, second).tokens
        assert "is gone from" in loads[0].error, "rank 1 has lost its shares"
    with over_disk(llama, tmp_path, tp=1) as (engine, loads):
        assert reply(engine, second) == alone(llama, second).tokens
        assert not loads, "blocks of two ranks are not those of one"


def stored(folder: Path) -> set[bytes]:
    with closing(sqlite3.connect(folder / INDEX)) as index:
        return {name for (name,) in index.execute("SELECT name FROM blocks")}
