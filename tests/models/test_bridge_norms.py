"""Norms of models that transformers runs, in fewer launches."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.test_bridge import BRIDGED, load_bridged, reference


def norms(model: Any) -> list[Any]:
    return [each for each in model.modules() if type(each).__name__.endswith("RMSNorm")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_shorter_norm_gives_the_numbers_of_transformers(dtype: torch.dtype) -> None:
    from transformers.models.arcee.modeling_arcee import ArceeRMSNorm

    from engine.models.bridge.norms import shorten_norms

    torch.manual_seed(0)
    norm = ArceeRMSNorm(48, 1e-5).to(dtype).requires_grad_(False)
    norm.weight.normal_()
    rows = torch.cat([torch.randn(3, 48) * scale for scale in (1e-3, 1.0, 100.0)]).to(dtype)[None]
    wide = rows.float()  # some models norm other types than that of their weights
    expected = [norm(rows), norm(wide)]
    assert shorten_norms(norm) == 1 and "forward" in vars(norm)
    for each, given in zip(expected, (rows, wide), strict=True):
        assert torch.equal(norm(given), each) and norm(given).dtype is each.dtype


def test_norms_with_other_code_stay_as_they_are() -> None:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.helium.modeling_helium import HeliumRMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    from engine.models.bridge.norms import shorten_norms

    for each in (Gemma2RMSNorm(8), HeliumRMSNorm(8), T5LayerNorm(8)):
        assert shorten_norms(each) == 0 and "forward" not in vars(each)


def test_all_norms_of_a_model_are_shorter(tmp_path: Path) -> None:
    reference(*BRIDGED["apertus"], tmp_path)
    found = norms(load_bridged("apertus", tmp_path))
    assert len(found) == 4 * 2 + 1
    assert all("forward" in vars(each) for each in found)
