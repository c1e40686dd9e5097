"""What a scheme costs on a real trained model: the built-in one."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from engine.config import ModelPlace
from engine.models.find import find_model
from engine.models.registry import load_model
from tests.quant.packers import Awq, Fp8, Gptq, write
from tests.quant.perplexity import perplexity
from tests.quant.test_schemes import skip_without_bitsandbytes

# The share by which its perplexity may move. docs/quantization.md has what was measured.
BOUNDS = {
    "int8": 0.001,
    "bnb-int8": 0.005,
    "int4-32": 0.015,
    "int4": 0.015,
    "int4-128": 0.015,
    "bnb-nf4": 0.015,
}


@cache
def of(scheme: str) -> float:
    model, _ = load_model(find_model("pocket"), quantization=scheme)
    return perplexity(model)


@pytest.mark.parametrize("scheme", BOUNDS)
def test_perplexity_stays_within_its_bound(scheme: str) -> None:
    if scheme.startswith("bnb"):
        skip_without_bitsandbytes()
    assert 1.5 < of("none") < 2.5, "the text says nothing of a model that is sure of it, or of nothing"
    assert of(scheme) == pytest.approx(of("none"), rel=BOUNDS[scheme])


@pytest.mark.parametrize("packer", [Gptq(group=64, symmetric=False, ordered=True), Awq(64), Fp8("block")])
def test_a_checkpoint_of_others_is_as_good_as_what_it_stands_for(tmp_path: Path, packer: Any) -> None:
    folder = find_model("pocket").folder
    tensors, config = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text()),
    )
    written = write(tensors, config, tmp_path, packer)
    found, expected = (
        perplexity(load_model(ModelPlace("it", each))[0]) for each in (written.quantized, written.plain)
    )
    assert found == pytest.approx(expected, rel=0.002)
    assert found == pytest.approx(of("none"), rel=0.04)
