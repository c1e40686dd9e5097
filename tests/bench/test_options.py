"""The engine's options have an effect in every question, and are kept with the figures."""

from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from engine.api.config import EngineConfig
from engine.serving.engine import Engine
from minichat.bench.cases import CaseResult
from minichat.bench.questions import quick
from minichat.bench.questions.ablations import _ablations
from minichat.bench.setup import Setup


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--max-slowdown", "1.5"], {"max_slowdown": 1.5}),
        (["--policy", "latency", "--target-ms", "20.0"], {"policy": "latency", "latency_target": 0.02}),
        (["--kv-window", "64", "--kv-sinks", "8"], {"kv_window": 64, "kv_sinks": 8}),
        (["--kv-budget", "96", "--kv-eviction", "attention"], {"kv_budget": 96, "kv_eviction": "attention"}),
        (["--kv-disk", "/scratch/kv:2"], {"kv_disk": "/scratch/kv:2"}),
    ],
)
def test_an_option_is_kept_with_the_figures_and_given_to_a_server(
    words: list[str], changes: dict[str, Any]
) -> None:
    """Figures with other options are no answer for these."""
    usual, changed = (Setup(config=EngineConfig(model="m", device="cpu", **each)) for each in ({}, changes))
    assert changed.settings != usual.settings
    assert sorted(changed.server_options) == sorted([*usual.server_options, *words])


def test_settings_have_no_folders() -> None:
    config = EngineConfig(model="m", device="cpu", kv_disk="/scratch/kv:2", draft="/models/small")
    assert "/" not in str(Setup(config=config).settings)


def test_main_memory_for_the_cache_can_be_given(tiny: Path) -> None:
    config = EngineConfig(model=str(tiny), device="cpu", kv_host=0.001)
    with closing(Setup(config=config, rows=(1,), prompt=8, reply=4, requests=2)) as setup:
        assert setup.engine().snapshot().host_size > 0
        assert setup.engine(host_blocks=0).snapshot().host_size == 0


def test_an_ablation_switches_off_what_the_options_switch_on(tiny: Path, tmp_path: Path) -> None:
    made = list[EngineConfig]()

    class Noted(Setup):
        def engine(self, **changes: Any) -> Engine:
            made.append(self._config(changes))
            return super().engine(**changes)

    config = EngineConfig(
        model=str(tiny), device="cpu", seed=0, policy="latency",
        quantization="int8", kv_scheme="int8", kv_host=0.001, kv_disk=f"{tmp_path}:0.001",
    )  # fmt: skip
    with closing(Noted(config=config, rows=(1,), prompt=8, reply=6, requests=3)) as setup:
        found = {each.name: each for each in _ablations(setup)}
        for name, field, off in (
            ("weights in int8", "quantization", "none"),
            ("weights in int4", "quantization", "none"),
            ("cache in int8", "kv_scheme", "none"),
            ("host tier", "host_blocks", 0),
            ("disk tier", "kv_disk", None),
            ("latency policy", "policy", "fcfs"),
        ):
            made.clear()
            contend = found[name].contenders
            assert contend is not None
            contend(setup)
            assert getattr(made[-1], field) == off != getattr(made[-2], field), name


@pytest.mark.parametrize(("changes", "beside"), [({}, True), ({"quantization": "int4"}, False)])
def test_quick_stands_beside_figures_of_the_same_options(changes: dict[str, Any], beside: bool) -> None:
    setup = Setup(config=EngineConfig(model="pocket", device="cpu", **changes))
    weights = quick.Figure("weights", "MB", 12.0, 12.0, 12.0, 1)
    out = StringIO()
    page = quick.page([CaseResult("memory", "pocket", (weights,))], setup.settings)
    Console(width=200, file=out).print(page)
    assert (" x " in out.getvalue()) is beside
