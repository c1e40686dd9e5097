"""The shapes that are measured on a GPU, and the bytes that limit their steps."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.limits import bytes_of_run, bytes_of_step
from engine.execution.traffic import weights_read
from engine.models.config_json import decoder_config
from engine.models.decoder import Decoder
from engine.models.fields import Fields
from minichat.bench.shapes import COMMON, EVERY, FOREIGN
from tests.models.tiny import CONFIG

BILLIONS = {
    "0.6B": 0.6, "8B": 8.0, "335M": 0.305, "30B-A3B": 30.5, "gpt-oss-20b": 20.9, "DeepSeek-V2-Lite": 15.7,
    "Gemma-3-12B": 11.8, "Qwen3.5-4B": 4.2, "Nemotron-H-8B": 8.1, "Nemotron-3-Nano": 31.6,
    "Granite-4.0-H-Tiny": 6.9, "Apertus-8B": 8.05, "Hunyuan-7B": 7.5,
}  # fmt: skip


def hollow(values: dict[str, Any], dtype: torch.dtype = torch.bfloat16) -> Decoder:
    with torch.device("meta"):
        config = decoder_config(Fields(Path("config.json"), values), Fields(Path("generation.json"), {}))
        return Decoder(config, dtype)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in FOREIGN])
def test_a_shape_has_the_parameters_of_its_model(name: str) -> None:
    count = sum(each.numel() for each in hollow(COMMON | EVERY[name]).parameters())
    assert count / 1e9 == pytest.approx(BILLIONS[name], rel=0.02)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_shape_that_transformers_runs_has_them_too(name: str, tmp_path: Path) -> None:
    import transformers  # seconds, which every test process would spend

    (tmp_path / "config.json").write_text(json.dumps(COMMON | EVERY[name]))
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(tmp_path)
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(each.numel() for each in model.parameters()) / 1e9 == pytest.approx(BILLIONS[name], rel=0.02)


def test_a_dense_model_reads_all_weights_and_the_cache() -> None:
    model = hollow(CONFIG)
    cell = sum(2 * spec.kv_heads * spec.key_dim for spec in model.config.layers) * 2
    assert bytes_of_step(model, 3, 100) == weights_read(model) + 3 * 100 * cell


def test_layers_with_a_window_read_only_that() -> None:
    few, many = (bytes_of_step(hollow(COMMON | EVERY["Gemma-3-12B"]), 1, each) for each in (1024, 2048))
    assert many - few == 8 * 1024 * 2 * 8 * 256 * 2  # the 8 layers without a window


def test_of_experts_those_count_that_rows_choose() -> None:
    model = hollow(COMMON | EVERY["30B-A3B"])
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    dense = weights_read(model) - experts
    assert bytes_of_step(model, 1, 1) - dense == pytest.approx(experts * 8 / 128, rel=1e-3)
    assert bytes_of_step(model, 256, 1) - dense == pytest.approx(experts, rel=1e-2)


def test_latents_are_read_once() -> None:
    model = hollow(COMMON | EVERY["DeepSeek-V2-Lite"])
    assert bytes_of_step(model, 1, 2) - bytes_of_step(model, 1, 1) == 27 * 576 * 2


@pytest.mark.parametrize("name", ["Gemma-3-12B", "30B-A3B"])
def test_a_run_reads_what_its_steps_read(name: str) -> None:
    model = hollow(COMMON | EVERY[name])
    together = bytes_of_run(model, [1020, 1020], [6, 6])
    assert together == pytest.approx(sum(bytes_of_step(model, 2, context) for context in range(1021, 1026)))
    longer = sum(bytes_of_step(model, 1, context) for context in range(1026, 1030))
    assert bytes_of_run(model, [1020, 1020], [6, 10]) - together == pytest.approx(longer)
