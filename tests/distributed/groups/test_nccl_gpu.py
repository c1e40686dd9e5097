"""The tests of ranks on two GPUs, but their sums go over NCCL, as without access to each other's memory."""

from pathlib import Path

import pytest
import torch

from engine.distributed import team
from tests.distributed.test_peers_gpu import (
    engine_on,
    same_replies,
    test_a_rank_that_dies_ends_the_engine,
    test_a_step_that_fails_on_one_rank_fails_on_all,
    test_quantized_ranks_are_as_exact_as_one_gpu,
    test_replies_in_bfloat16,
    test_the_scheme_of_ranks_changes_while_they_reply,
)
from tests.runner.small import make

__all__ = [
    "test_a_rank_that_dies_ends_the_engine",
    "test_a_step_that_fails_on_one_rank_fails_on_all",
    "test_quantized_ranks_are_as_exact_as_one_gpu",
    "test_replies_in_bfloat16",
    "test_the_scheme_of_ranks_changes_while_they_reply",
]
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture(autouse=True)
def over_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "needs_group", lambda config: config.tp > 1)


@pytest.mark.parametrize(("family", "depth"), [("qwen3", 1), ("qwen3", 0), ("qwen3_moe", 1)])
def test_replies_equal_those_of_one_device(tmp_path: Path, family: str, depth: int) -> None:
    from engine.distributed.groups.nccl import NcclCollective

    make(family, tmp_path)
    one = engine_on(tmp_path, "cpu", 1, depth=depth)
    engine = engine_on(tmp_path, "cuda", 2, depth=depth)
    try:
        assert isinstance(engine.ranks.sums, NcclCollective)
        assert engine.runner.graphs is None
        assert same_replies(one, engine) >= 19
        ranks = engine.snapshot().ranks
        assert all(0 < each.joining < 1 and each.traffic > 0 for each in ranks), ranks
    finally:
        engine.ranks.close()
