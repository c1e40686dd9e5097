"""Whose memory is whose: looked at once a second, however often somebody asks."""

from pathlib import Path

import pytest
import torch

from engine.cache.store import KVStore
from engine.config import EngineConfig
from engine.runner import memory
from engine.runner.memory import MemoryMeter
from engine.start import start
from tests.cli.conftest import write_model


def test_the_device_is_asked_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start(EngineConfig(model=str(write_model(tmp_path / "model")), device="cpu", blocks=8))
    runner, now, asked = engine.runner, 0.0, 0

    def free() -> int:
        nonlocal asked
        asked += 1
        return 1000 - asked

    monkeypatch.setattr(memory, "free_host_memory", free)
    meter = MemoryMeter(runner.model, runner.store, torch.device("cpu"), lambda: now)
    for tick in range(25):
        now = tick / 10
        found = meter.read()
    assert asked == 3
    assert found["device_free"] == 997 < found["device_total"]
    spec = runner.store.layers[0].spec
    assert found["cache"] == 8 * KVStore.block_bytes([spec] * len(runner.store.layers), 16, torch.float32)
    parameters = {id(each): each.nbytes for each in (*runner.model.parameters(), *runner.model.buffers())}
    assert found["weights"] == sum(parameters.values()) > 0
    assert found["host_cache"] == 0


def test_a_snapshot_says_how_the_cache_is_kept(tmp_path: Path) -> None:
    engine = start(EngineConfig(model=str(write_model(tmp_path / "model")), device="cpu", blocks=8))
    shot = engine.snapshot()
    assert (shot.kv_dtype, shot.dtype, shot.quantization) == ("float32", "float32", "none")
    assert shot.memory["weights"] > 0
