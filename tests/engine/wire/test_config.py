"""The engine's configuration: each bad field is refused by name before anything is loaded."""

import math
from dataclasses import fields
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import BadInput

BAD = {
    "model": [None, 5],
    "dtype": ["int8", None],
    "device": [0, None],
    "adapters": ["a=b", ["a=b"], ("a=b", 3), None],
    "tp": [0, -1, 1.5, "2", True, None],
    "pp": [0, -1, 1.5, "2", True, None],
    "meet": ["10.0.0.5", "10.0.0.5:7000", "10.0.0.5:70000:secret", 7000, True],
    "threads": [0, -1, 1.0, "2", True],
    "dummy_weights": ["no", 1, None],
    "attention": [None, 3],
    "policy": [None, 3],
    "latency_target": [-1, "1", None, True, math.inf, math.nan],
    "max_slowdown": [0.99, "2", True, math.inf, math.nan],
    "block_size": [15, 0, 16.0, "16", True],
    "blocks": [0, 2.5, "many"],
    "kv_host": [-1, "3", True, math.inf, math.nan],
    "host_blocks": [-1, 1.5, "3", True],
    "max_context": [0, "long", math.inf],
    "quantization": [8, None],
    "kv_window": [0, 15, 32.0, "64", True],
    "kv_sinks": [-1, 1.5, "4", None, True],
    "kv_budget": [0, 79, 96.0, "128", True],
    "kv_eviction": ["", "lru", 1, None],
    "kv_scheme": ["int3", "", None, 8],
    "max_running": [0, None, False],
    "max_step_tokens": [0, 1.5],
    "max_waiting": [0, "9", None],
    "prefix_cache": ["yes", 0, None],
    "chunked_prefill": ["yes", 1, None],
    "preemption": ["never", None],
    "depth": [2, -1, True, 1.0, "0"],
    "seed": ["x", 1.5, True, math.nan],
    "exchange": [
        5,
        "",
        "/memory",
        "/memory:0::",
        "/memory:2:2:",
        "/memory:two:0:",
        ":1:0:",
        "/memory:1:0:a",
        "/memory:1:0:0,",
    ],
    "kv_disk": [5, "", "/tmp", "/tmp:0", "/tmp:-1", "/tmp:much", ":5", "/tmp:nan", "/tmp:inf"],
    "draft": [5, True],
    "exit_layer": [0, -1, 1.5, "2", True],
    "first_request": [-1, 1.5, "3", None, True],
    "warm": ["yes", 1, None],
}
CASES = [(field, value) for field, values in BAD.items() for value in values]


def test_every_field_has_bad_values_in_this_file() -> None:
    assert set(BAD) == {field.name for field in fields(EngineConfig)}


@pytest.mark.parametrize(("field", "value"), CASES)
def test_a_bad_value_is_refused_and_its_field_named(field: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"^{field} must be .*{value!r}"):
        EngineConfig(**{"model": "m", field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [None, 0, -5, 2**70])
def test_any_integer_is_a_valid_seed(seed: int | None) -> None:
    assert EngineConfig(model="m", seed=seed).seed == seed


def test_host_memory_has_one_size() -> None:
    with pytest.raises(BadInput, match="kv_host and host_blocks cannot be used together"):
        EngineConfig(model="m", kv_host=1, host_blocks=8)


@pytest.mark.parametrize(("name", "value"), [("kv_budget", 128), ("adapters", ("a=b",))])
def test_what_ranks_cannot_do_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{name} cannot be used with tp yet"):
        EngineConfig(model="m", tp=2, **{name: value})
    with pytest.raises(BadInput, match=f"{name} cannot be used with pp yet"):
        EngineConfig(model="m", pp=2, **{name: value})


def test_only_ranks_meet() -> None:
    for counts in ({"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}):
        assert EngineConfig(model="m", meet="10.0.0.5:7000:secret", **counts).meet  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="meet needs tp or pp above 1"):
        EngineConfig(model="m", meet="10.0.0.5:7000:secret")


def test_early_exits_need_the_head_on_the_first_stage() -> None:
    with pytest.raises(BadInput, match="exit_layer cannot be used with pp"):
        EngineConfig(model="m", pp=2, exit_layer=2)
