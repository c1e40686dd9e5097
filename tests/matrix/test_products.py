"""What every architecture of the bridge allows: other weights, and steps in CUDA graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.api.config import ModelPlace
from engine.api.errors import BadInput
from engine.models.load_request import LoadRequest
from engine.models.registry import bridged
from tests.matrix.__main__ import PAGE, results_on
from tests.matrix.small import make
from tests.models.tiny import plain_attend

NAMES = [each.model_type for each in results_on(PAGE.read_text(encoding="utf-8")) if each.status == "bridge"]
AT_THE_START = {"gemma3n", "got_ocr2", "hy_v3"}  # their files name weights otherwise
WAITING = {"dbrx"}  # it reads numbers back from the device
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2"}


class Watch(TorchDispatchMode):
    """Notes the operations that would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.waits |= WAITS & {function._schema.name}
        return function(*args, **(kwargs or {}))


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_linear_layers_are_replaced_and_nothing_waits(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    place = ModelPlace(name, tmp_path)
    model: Any = bridged(LoadRequest(place=place, device=torch.device("cpu")))
    products, attend = model.requantizable, plain_attend(model.config.layers, [6], model.sinks)
    assert products.problem == "" and all(products.layers)
    if name in AT_THE_START:
        with pytest.raises(BadInput, match="in another form"):
            products.check()
    else:
        products.check()

    def nothing(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.new_zeros(*q.shape[:2], v.shape[-1])

    def logits(attend: Any) -> Tensor:
        found: Tensor = model.logits(model.forward(torch.arange(3, 9), torch.arange(6), attend))
        return found

    routed = any(each.dim() == 3 for each in model.trunk.parameters())
    most = 1.0 if routed else 0.1  # rounding changes which experts a token chooses
    with torch.no_grad():
        exact = logits(attend)
        with Watch() as watch:
            logits(nothing)
        assert bool(watch.waits) == (name in WAITING), watch.waits
        products.use("int8")
        assert 0 < (logits(attend) - exact).norm() < most * exact.norm()
