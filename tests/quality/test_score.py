"""The quality report of schemes, against transformers and against sums computed by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.quality.measure import compare, own_text
from engine.quality.schemes import REFERENCE, SchemePair, choices
from engine.quality.score import Score, read
from tests.cases import soak
from tests.runner.small import engine_on

IDS = [1, *(30 + n * 37 % 220 for n in range(300))]
TEXT = "The lamp coughed, and glowed, and the glass began to do what it had been made for. " * 2


@pytest.mark.parametrize("stretch", [40, 160, 240])
def test_log_probabilities_equal_transformers(llama: tuple[Path, Any], stretch: int) -> None:
    folder, theirs = llama
    pieces = list(read(engine_on(folder).runner, IDS, stretch))
    found, following = (torch.cat(each) for each in zip(*pieces, strict=True))
    assert following.tolist() == IDS[1:]
    with torch.inference_mode():
        for at in range(0, len(IDS) - 1, stretch):
            part = torch.tensor([IDS[at : min(at + stretch, len(IDS) - 1)]])
            expected = theirs(part).logits[0].log_softmax(-1)
            torch.testing.assert_close(found[at : at + part.shape[1]], expected, rtol=1e-4, atol=1e-4)


def test_scores_equal_sums_by_hand() -> None:
    ours = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    theirs = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.7, 0.1, 0.2]])
    score = Score()
    score.add(ours[:2].log(), theirs[:2].log(), torch.tensor([0, 2]))
    score.add(ours[2:].log(), theirs[2:].log(), torch.tensor([1]))
    by_hand = [
        sum(q * math.log(q / p) for p, q in zip(mine, other, strict=True) if q)
        for mine, other in zip(ours.tolist(), theirs.tolist(), strict=True)
    ]
    assert score.kl == pytest.approx(sum(by_hand) / 3, rel=1e-5)
    assert score.perplexity == pytest.approx((0.5 * 0.1 * 0.2) ** (-1 / 3), rel=1e-5)
    assert score.top1 == pytest.approx(2 / 3)


@pytest.mark.soak
def test_rows_are_in_the_requested_order(llama: tuple[Path, Any]) -> None:
    config = EngineConfig(model=str(llama[0]), device="cpu", blocks=64)
    plain, packed = compare(config, choices("none,kv-int8"), TEXT, most=60)
    assert (plain.scheme, plain.kl, plain.top1) == ("none", 0.0, 1.0)
    assert 0 < packed.kl < 0.05
    assert packed.bytes == plain.bytes
    assert packed.kv_bytes < plain.kv_bytes / 2  # than float32
    for row in (plain, packed):
        assert all(
            value and value > 0 for value in (row.load_s, row.ttft_s, row.tok_s, row.tok_s_8, row.tok_s_32)
        )
    [alone] = compare(config, choices("kv-int8"), TEXT, most=60, speed=False)
    assert (alone.kl, alone.perplexity, alone.tok_s) == (packed.kl, packed.perplexity, None)


def test_an_unavailable_scheme_is_left_out_with_the_reason(llama: tuple[Path, Any]) -> None:
    config, reasons = EngineConfig(model=str(llama[0]), device="cpu", blocks=64), dict[str, str]()
    rows = list(compare(config, choices("fp8,none"), TEXT, most=20, speed=False, refused=reasons.setdefault))
    assert [row.scheme for row in rows] == ["none"]
    assert "NVIDIA" in reasons["fp8"]
    with pytest.raises(BadInput, match="unknown weight scheme 'int5'; must be one of none, fp32"):
        list(compare(config, choices("int5"), TEXT))
    with pytest.raises(BadInput, match=r"the text has . tokens; use at least 2"):
        list(compare(config, choices("none"), ""))


@pytest.mark.parametrize(
    ("scheme", "ratio", "kl", "top1"),
    [
        ("int4", 1e-2, 4e-3, 0.96),
        *soak(("int8", 2e-3, 5e-4, 0.97), ("fp8", 5e-3, 2e-3, 0.96)),
    ],
)
def test_the_cache_keeps_the_documented_quality(scheme: str, ratio: float, kl: float, top1: float) -> None:
    """On the built-in model and text like its training data; docs/quality.md has figures for all of it."""
    config = EngineConfig(model="pocket", device="cpu", threads=1, blocks=64)
    plain, packed = compare(config, choices(f"none,kv-{scheme}"), own_text("pocket"), most=700, speed=False)
    assert packed.perplexity / plain.perplexity - 1 < ratio
    assert packed.kl < kl
    assert packed.top1 > top1
    assert plain.kv_bytes / packed.kv_bytes > 1.9


def test_names_of_schemes() -> None:
    assert choices("none, int8,kv-fp8,int4+kv-int8,kv-int8+int8,int8") == [
        REFERENCE,
        SchemePair("int8", "int8", "none"),
        SchemePair("kv-fp8", "none", "fp8"),
        SchemePair("int4+kv-int8", "int4", "int8"),
        SchemePair("kv-int8+int8", "int8", "int8"),
    ]
    for bad, problem in {
        " ,": "no schemes given",
        "int8+int4": "at most one part for the weights and one for the cache",
        "kv-int8+kv-fp8": "at most one part for the weights and one for the cache",
        "kv-int5": "unknown cache scheme kv-int5; must be one of kv-none, kv-int8, kv-fp8, kv-int4",
    }.items():
        with pytest.raises(BadInput, match=problem):
            choices(bad)


def test_texts_are_available() -> None:
    assert len(own_text("pocket")) > 4000
    assert len(own_text("another")) > 4000
