"""The quality of each scheme on the built-in model, which is really trained."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from engine.api.config import EngineConfig, ModelPlace
from engine.kernels.cpu.compiled import build
from engine.models.find import find_model
from engine.models.registry import load_model
from engine.quality.measure import compare, own_text
from engine.quality.schemes import choices
from engine.quant.fp8 import Fp8
from tests.cases import soak
from tests.quant import packers
from tests.quant.packers import Awq, Gptq, write
from tests.quant.perplexity import perplexity
from tests.quant.test_schemes import skip_without_bitsandbytes

# The relative change of perplexity that is allowed. docs/quantization.md has the measured values.
BOUNDS = {
    "fp32": 0.001,
    "fp16": 0.001,
    "int8": 0.001,
    "fp8": 0.005,
    "bnb-int8": 0.005,
    "int4-32": 0.015,
    "int4": 0.015,
    "int4-128": 0.015,
    "bnb-nf4": 0.015,
    "bnb-fp4": 0.02,
}
# Of the whole distribution: the divergence from the unquantized model's, in nats per token.
DIVERGENCES = {
    "fp32": 0.0001,
    "fp16": 0.0002,
    "int8": 0.0005,
    "fp8": 0.001,
    "bnb-int8": 0.0005,
    "int4-32": 0.01,
    "int4": 0.005,
    "int4-128": 0.008,
    "bnb-nf4": 0.006,
    "bnb-fp4": 0.006,
}
# The same for a model of 260 thousand parameters, which is more sensitive.
BOUNDS_OF_A_TINY_ONE = {
    "int8": 0.002,
    "bnb-int8": 0.006,
    "int4-32": 0.09,
    "int4": 0.11,
    "int4-128": 0.11,
    "bnb-nf4": 0.18,
    "bnb-fp4": 0.21,
}


WHOLE = [False, pytest.param(True, marks=pytest.mark.soak)]  # of the text
ALIKE = (
    "fp32",
    "fp16",
    "int4-32",
    "int4",
    "bnb-fp4",
)  # schemes that the tiny model and their neighbors cover in each run
SCHEMES = [pytest.param(each, marks=pytest.mark.soak) if each in ALIKE else each for each in BOUNDS]


@cache
def perplexity_of(scheme: str, whole: bool = False) -> float:
    model = load_model(find_model("pocket"), quantization=scheme)
    return perplexity(model, whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_perplexity_stays_within_its_bound(scheme: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if scheme.startswith("bnb"):
        skip_without_bitsandbytes()
    monkeypatch.setattr(Fp8, "why_not", lambda *where: None)  # on a CPU it is just too slow to be offered
    whole = whole or scheme == "int8"  # of one stretch, roundings of norms alone change 0.08 %
    plain = perplexity_of("none", whole)
    assert 1.5 < plain < 2.5, "the model predicts the text too well or too badly for a test"
    assert perplexity_of(scheme, whole) == pytest.approx(plain, rel=BOUNDS[scheme])


@pytest.mark.parametrize(
    ("scheme", "tokens"), [("int8", 150), ("int4", 150), *soak(*((each, 700) for each in DIVERGENCES))]
)
def test_the_divergence_stays_within_its_bound(
    scheme: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme.startswith("bnb"):
        skip_without_bitsandbytes()
    monkeypatch.setattr(Fp8, "why_not", lambda *where: None)
    config = EngineConfig(model="pocket", device="cpu", threads=1, blocks=64)
    plain, packed = compare(config, choices(f"none,{scheme}"), own_text("pocket"), most=tokens, speed=False)
    if scheme == "fp32" and build.products(16) is build.PRODUCTS_AVX2:  # their sums are in float32, too
        assert packed.bytes > 1.5 * plain.bytes, "it ran"
        assert 0 <= packed.kl < DIVERGENCES[scheme]
    else:
        assert 0 < packed.kl < DIVERGENCES[scheme]


def perplexities_of_a_tiny_model(folder: Path, schemes: tuple[str, ...]) -> dict[str, float]:
    """By scheme, of those that are available here; all are compared with one reference."""
    config = EngineConfig(model=str(folder), device="cpu", threads=1, blocks=64)
    rows = compare(config, choices(",".join(("none", *schemes))), own_text("pocket"), speed=False)
    return {row.scheme: row.perplexity for row in rows}


# In each run those that the built-in model has not.
@pytest.mark.parametrize(
    "schemes",
    [
        ("int4-32", "int4"),
        *(
            pytest.param((each,), marks=pytest.mark.soak)
            for each in BOUNDS_OF_A_TINY_ONE
            if each not in ("int4-32", "int4")
        ),
    ],
    ids="-".join,
)
def test_perplexity_of_a_tiny_model_stays_within_its_bound(schemes: tuple[str, ...], shared: Path) -> None:
    for scheme in schemes:
        if scheme.startswith("bnb"):
            skip_without_bitsandbytes()
    found = perplexities_of_a_tiny_model(shared / "models" / "stories260K", schemes)
    for scheme in schemes:
        assert found[scheme] == pytest.approx(found["none"], rel=BOUNDS_OF_A_TINY_ONE[scheme])


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize(
    "packer",
    [
        Gptq(group=64, symmetric=False, ordered=True),
        *(pytest.param(each, marks=pytest.mark.soak) for each in (Awq(64), packers.Fp8("block"))),
    ],
)
def test_a_quantized_checkpoint_is_as_good_as_its_dequantized_numbers(
    tmp_path: Path, packer: Any, whole: bool
) -> None:
    folder = find_model("pocket").folder
    tensors, config = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text()),
    )
    written = write(tensors, config, tmp_path, packer)
    found, expected = (
        perplexity(load_model(ModelPlace("it", each)), whole) for each in (written.quantized, written.plain)
    )
    assert found == pytest.approx(expected, rel=0.002)
    assert found == pytest.approx(perplexity_of("none", whole), rel=0.04)
