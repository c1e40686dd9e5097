"""A model that transformers runs, with parts in one launch each: the same results in fewer launches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.config import ModelPlace
from engine.kernels import switches
from engine.models.load_request import LoadRequest
from engine.models.registry import bridged
from tests.models.test_bridge import reference

pytestmark = pytest.mark.cuda
MODELS: dict[str, tuple[dict[str, Any], float]] = {  # the share of launches that may remain
    "Apertus": ({}, 0.55), "HunYuanDenseV1": ({"head_dim": 8}, 0.6), "Arcee": ({}, 0.65), "Phi3": ({}, 0.85),
}  # fmt: skip


def opened(folder: Path) -> Any:
    return bridged(LoadRequest(place=ModelPlace("it", folder), device=torch.device("cuda"), dtype="bfloat16"))


def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """No attention, but something that reads all of them, in any order of memory."""
    group = q.shape[1] // k.shape[1]
    return (v.cumsum(0) + k).repeat_interleave(group, 1) + q


@torch.inference_mode()
def hidden(model: Any, tokens: int) -> Tensor:
    ids = torch.arange(3, 3 + tokens, device="cuda")
    found: Tensor = model.forward(ids, torch.arange(tokens, device="cuda"), attend)
    return found.float()


def launches(model: Any) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        hidden(model, 1)
        torch.cuda.synchronize()
    return sum(each.device_type.name == "CUDA" for each in trace.events() or ())


@pytest.mark.parametrize("early", [False, True], ids=["in order", "early"])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_in_fewer_launches(
    name: str, early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, share = MODELS[name]
    reference(name, changes, tmp_path)

    def of(parts: bool, early: bool) -> Any:
        for switch, on in (("SHORT_PARTS", parts), ("SHORT_PRODUCTS", parts), ("SHORT_EARLY", early)):
            monkeypatch.setattr(switches, switch, on)
        return opened(tmp_path)

    plain, short = of(False, False), of(True, early)
    for tokens in (1, 2, 9):
        expected, found = hidden(plain, tokens), hidden(short, tokens)
        assert (found - expected).norm() < 0.02 * expected.norm(), tokens
    before, after = launches(plain), launches(short)
    print(f"{name}: {before} launches, then {after}")
    assert after < share * before
