"""A third-party tier: a class whose object is passed to the engine."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from engine.api.cache_spec import KV_SCHEMES
from engine.api.config import EngineConfig
from engine.api.errors import BadWire
from engine.api.events import Event, Resumed, Transferred
from engine.api.snapshot import TierView
from engine.serving.engine import Engine
from engine.serving.recordings.replay import replay
from engine.start import start
from tests.cases import one_row_of
from tests.engine.byte_tier import closed
from tests.extending.tier import FileTier
from tests.outputs import Output
from tests.runner.small import ask, drain, make, run_to, turn_until

PROMPT = [1, *(40 + n % 150 for n in range(37))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make("llama", folder)
    return folder


def engine_on(model: Path, *below: FileTier, **config: Any) -> Engine:
    plain = {"device": "cpu", "blocks": 32, "seed": 0, "preemption": "swap", "prefix_cache": False}
    return start(EngineConfig(model=str(model), **plain | config), below=below)


def swap_out_and_in(
    engine: Engine, while_stored: Callable[[], object] = lambda: None
) -> tuple[list[Output], list[Event]]:
    """Two replies; the first is preempted, and resumed once its blocks are in files."""
    events: list[Event] = []
    engine.bus.subscribe(events.append)
    (id, one), (_, other) = ask(engine, PROMPT), ask(engine, PROMPT[:9])
    run_to(engine, one, 5)
    engine.preempt(id)
    with closed(engine):
        turn_until(engine, lambda: any(isinstance(each, Transferred) for each in events))
    request = engine.scheduler.requests[id]
    assert request.stored is not None and request.stored.tier == "files" and not request.blocks
    shot = engine.snapshot()
    assert shot.tiers == (TierView("files", 3, 8),)
    assert shot.host_in_use == 0, "files are not host memory"
    while_stored()
    drain(engine)
    return [one, other], events


@pytest.mark.parametrize(("depth", "scheme"), one_row_of(3, product([0, 1], KV_SCHEMES)))
def test_a_request_is_resumed_from_files(model: Path, tmp_path: Path, depth: int, scheme: str) -> None:
    tier = FileTier(tmp_path, 8)
    engine = engine_on(model, tier, depth=depth, kv_scheme=scheme)
    replies, events = swap_out_and_in(engine)
    moved = [each for each in events if isinstance(each, Transferred)]
    assert [(each.tier, each.load, each.blocks, each.error) for each in moved] == [
        ("files", False, 3, ""),
        ("files", True, 3, ""),
    ]
    assert [each.swapped for each in events if isinstance(each, Resumed)] == [True]
    for prompt, output in zip((PROMPT, PROMPT[:9]), replies, strict=True):
        plain = engine_on(model, kv_scheme=scheme)
        _, alone = ask(plain, prompt)
        drain(plain)
        assert output.reply == alone.reply
    assert tier.cost.load and tier.cost.store and not list(tmp_path.iterdir())


def test_a_missing_file_is_recomputed(model: Path, tmp_path: Path) -> None:
    engine = engine_on(model, FileTier(tmp_path, 8))
    (one, _), events = swap_out_and_in(engine, lambda: max(tmp_path.iterdir()).unlink())
    failed = [each.error for each in events if isinstance(each, Transferred) and each.error]
    assert len(failed) == 1 and failed[0].startswith("FileNotFoundError")
    plain = engine_on(model)
    _, alone = ask(plain, PROMPT)
    drain(plain)
    assert one.reply == alone.reply


def test_a_recording_with_transfers_is_replayed(model: Path, tmp_path: Path) -> None:
    """By another runner with a separate tier, and without requests."""
    (then := tmp_path / "then").mkdir(), (now := tmp_path / "now").mkdir()
    engine = engine_on(model, FileTier(then, 8), depth=1)
    engine.record(tmp_path / "recording")
    replies, _ = swap_out_and_in(engine)
    engine.stop_recording()
    fresh = engine_on(model, FileTier(now, 8), depth=1)
    steps = list(replay(tmp_path / "recording", fresh.runner, fresh.origin))
    assert all(each.now == each.then for each in steps)
    assert sum(len(each.now.tokens) for each in steps) == sum(len(each.tokens) for each in replies)
    assert not list(now.iterdir())
    plain = engine_on(model, depth=1)
    with pytest.raises(BadWire, match="starts with"):
        list(replay(tmp_path / "recording", plain.runner, plain.origin))
