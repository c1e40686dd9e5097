"""Which GPUs can be ranks, and what a rank's process sees of them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.api.config import EngineConfig
from engine.distributed.crews.gpu_names import gpus_of_rank
from engine.distributed.identity import Gpu

pytest.importorskip("triton", reason="no Triton here")


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int, far: tuple[int, ...] = (), size: int = 132) -> None:
    """A machine with as many GPUs; those in `far` reach no other one's memory."""

    def reaches(one: int, other: int) -> bool:
        return not {one, other} & {*far}

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", reaches)
    properties: Any = lambda n: SimpleNamespace(multi_processor_count=size)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)


def problem(first: int, **config: Any) -> str:
    from engine.distributed.peers import why_not

    return why_not(EngineConfig(model="any", **config), torch.device("cuda", first))


def apart(first: int, **config: Any) -> str:
    from engine.distributed.peers import why_apart

    return why_apart(EngineConfig(model="any", **config), first)


def test_gpus_that_can_be_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 4, far=(0,))
    assert problem(1, tp=3) == ""
    assert problem(2, tp=2, attention="triton", quantization="int8") == ""


@pytest.mark.parametrize(
    ("gpus", "first", "config", "reason"),
    [
        (1, 0, {"tp": 2}, "2 ranks need 2 GPUs from cuda:0 on, and there are 1"),
        (4, 3, {"tp": 2}, "2 ranks need 2 GPUs from cuda:3 on, and there are 4"),
        (2, 0, {"tp": 2, "attention": "flashinfer"}, "ranks on GPUs do not support the attention backend"),
    ],
)
def test_gpus_that_cannot_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, gpus: int, first: int, config: dict[str, Any], reason: str
) -> None:
    machine(monkeypatch, gpus, far=(3,))
    assert problem(first, **config).startswith(reason)


def test_gpus_that_cannot_sum_in_each_others_memory_use_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 4, far=(3,))
    assert problem(1, tp=3) == ""
    assert apart(0, tp=3) == ""
    assert apart(1, tp=3) == "cuda:1 cannot access the memory of cuda:3"
    machine(monkeypatch, 2, size=80)
    assert problem(0, tp=2) == ""
    assert apart(0, tp=2) == "cuda:0 has 80 multiprocessors, and that takes 128"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"pp": 2, "quantization": "int8", "attention": "flashinfer"}, ""),
        ({"pp": 3}, "3 ranks need 3 GPUs from cuda:0 on, and there are 2"),
        ({"pp": 2, "tp": 2}, "4 ranks need 4 GPUs from cuda:0 on, and there are 2"),
        ({"pp": 2, "meet": "a:1:b"}, "stages on several machines run on CPUs only so far"),
    ],
)
def test_gpus_that_can_be_stages(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], reason: str
) -> None:
    """They need not reach each other's memory."""
    machine(monkeypatch, 2, far=(0, 1), size=80)
    assert problem(0, **config) == reason


def test_only_the_gpus_of_a_stage_reach_each_others_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 8)
    assert problem(0, tp=2, pp=4) == ""
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: one // 2 == other // 2)
    assert apart(0, tp=2, pp=4) == apart(2, tp=2, pp=3) == ""
    assert apart(1, tp=2, pp=2) == "cuda:1 cannot access the memory of cuda:2"
    assert apart(0, tp=4, pp=2) == "cuda:0 cannot access the memory of cuda:2"


def test_a_ranks_own_gpu_has_the_number_of_rank_0s() -> None:
    gpus = [Gpu(f"GPU-{n}", "NVIDIA H200") for n in range(4)]
    assert gpus_of_rank(0, 1, gpus) == gpus
    assert [each.uuid for each in gpus_of_rank(2, 1, gpus)] == ["GPU-0", "GPU-3", "GPU-2", "GPU-1"]
