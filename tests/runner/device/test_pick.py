"""Which device a name chooses."""

import pytest
import torch

from engine.api.errors import BadInput
from engine.devices import pick


@pytest.mark.parametrize(("count", "found"), [(1, "1 CUDA GPU found"), (2, "2 CUDA GPUs found")])
def test_an_index_beyond_the_gpus_is_refused(monkeypatch: pytest.MonkeyPatch, count: int, found: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert pick(f"cuda:{count - 1}") == torch.device("cuda", count - 1)
    with pytest.raises(BadInput) as refused:
        pick(f"cuda:{count}")
    assert str(refused.value) == f"device 'cuda:{count}' is not available: {found}"
