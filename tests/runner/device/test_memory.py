"""Memory use by owner, read once a second however often it is asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.config import DecoderConfig, EngineConfig
from engine.api.errors import BadCheckpoint, BadInput
from engine.api.events import Preempted
from engine.api.params import SamplingParams
from engine.execution import memory, weights
from engine.execution.changes import Recache, ReplaceLayer
from engine.execution.memory import MemoryMeter
from engine.kv.store import KVStore
from engine.models.layers.block import Block
from engine.start import start
from tests.cli.conftest import write_model
from tests.outputs import Output


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
    del parameters[id(runner.model.rope)]
    assert found["weights"] == sum(parameters.values()) > 0
    assert found["host_cache"] == 0


def test_the_sizes_after_a_change_are_new_at_once(tmp_path: Path) -> None:
    """A drawer that shows the new scheme must not show the size of the old one."""
    engine = start(EngineConfig(model=str(write_model(tmp_path / "model")), device="cpu", blocks=8))
    for change, what in ((ReplaceLayer(0, "int8"), "weights"), (Recache("int8"), "cache")):
        before, read = engine.runner.memory()[what], engine.runner.reads()
        assert engine.runner.reads() is read, "snapshots are frequent, and to count takes as long as all else"
        engine.runner.apply(change)
        assert engine.runner.memory()[what] < before
        assert engine.runner.reads() < read


def test_the_sizes_under_all_schemes_come_from_one_look_at_the_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is not ready before its first snapshot has them."""
    engine, made = start(EngineConfig(model=str(write_model(tmp_path)), device="cpu", blocks=8)), list[int]()
    usual = weights.block

    def block(config: DecoderConfig, index: int, *given: Any) -> Block:
        made.append(index)
        return usual(config, index, *given)

    monkeypatch.setattr(weights, "block", block)
    schemes = engine.snapshot().schemes
    assert sum(each.nbytes > 0 for each in schemes) > 3
    assert made == [*range(len(engine.runner.model.layers))]


def test_a_snapshot_reports_the_type_of_the_cache(tmp_path: Path) -> None:
    engine = start(EngineConfig(model=str(write_model(tmp_path / "model")), device="cpu", blocks=8))
    shot = engine.snapshot()
    assert (shot.kv_dtype, shot.dtype, shot.quantization) == ("float32", "float32", "none")
    assert shot.memory["weights"] > 0


def test_the_size_of_the_weights_is_that_of_the_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    shot = start(EngineConfig(model=str(folder), device="cpu", blocks=8)).snapshot()
    data = (folder / "model.safetensors").read_bytes()
    stored = len(data) - 8 - int.from_bytes(data[:8], "little")
    assert shot.memory["weights"] == stored
    assert next(each.nbytes for each in shot.schemes if each.name == "none") == stored


@pytest.mark.parametrize("name", ["blocks", "host_blocks"])
def test_more_blocks_than_fit_into_memory_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "model")
    with pytest.raises(BadInput, match=f"{name}: {10**12} blocks of .* exceed the .* bytes of memory"):
        start(EngineConfig(**{"model": str(folder), "device": "cpu", "blocks": 8, name: 10**12}))


def test_more_host_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    with pytest.raises(BadInput, match=r"kv_host: 1e\+06 GB exceed the .* GB of memory"):
        start(EngineConfig(model=str(folder), device="cpu", blocks=8, kv_host=1e6))


def test_a_dangling_link_to_weights_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "gone")
    (folder / "model.safetensors").symlink_to("elsewhere")
    with pytest.raises(BadCheckpoint, match="holds neither"):
        start(EngineConfig(model=str(folder), device="cpu", blocks=8))


@pytest.mark.parametrize(("room", "size"), [({}, 0), ({"host_blocks": 8}, 8), ({"kv_host": 5e-5}, 12)])
def test_a_cpu_swaps_if_it_is_given_room(tmp_path: Path, room: dict[str, Any], size: int) -> None:
    folder = write_model(tmp_path / "model")
    engine = start(EngineConfig(model=str(folder), device="cpu", blocks=8, **room))
    assert engine.scheduler.transfers.sizes == (("host", size),)
    gone: list[bool] = []
    engine.bus.subscribe(lambda event: gone.append(event.swapped) if isinstance(event, Preempted) else None)
    id = engine.submit([1] * 40, SamplingParams(max_tokens=8), reply := Output())
    engine.step()
    engine.preempt(id)
    while engine.busy:
        engine.step()
    assert gone == [size > 0]
    assert len(reply.tokens) == 8


def test_what_drafts_beside_the_model_is_counted(tmp_path: Path) -> None:
    """A draft model has weights and a cache of its own."""
    folder, small = str(write_model(tmp_path / "model")), str(write_model(tmp_path / "small"))
    plain, both = (
        start(EngineConfig(model=folder, device="cpu", blocks=8, draft=draft)).runner.memory()
        for draft in (None, small)
    )
    assert "draft" not in plain
    assert both["draft"] == both["weights"] + both["cache"] == plain["weights"] + plain["cache"]
