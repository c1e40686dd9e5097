"""A rank on the second GPU that shares no memory with the first, as if it were on another machine."""

import os
import signal
from pathlib import Path

import pytest
import torch

from engine.api.errors import EngineDead
from tests.distributed.crews.running import rank
from tests.distributed.test_peers_gpu import GREEDY, engine_on, finish, same_replies
from tests.outputs import Output
from tests.runner.small import make

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_a_rank_of_another_machine(tmp_path: Path, meet: str) -> None:
    (folder := tmp_path / "model").mkdir()
    make("qwen3", folder)
    one = engine_on(folder, "cpu", 1)
    with rank(meet, tmp_path / "log", "cuda:1"):
        engine = engine_on(folder, "cuda:0", 2, meet=meet)
        try:
            assert same_replies(one, engine) >= 19
            other = engine.snapshot().ranks[1]
            assert 0 < other.joining < 1 and other.traffic > 0
            engine.submit([1, 5, 9, 30], GREEDY.changed(max_tokens=100), Output())
            for _ in range(5):
                engine.step()
            os.kill(other.pid, signal.SIGKILL)
            with pytest.raises(EngineDead, match=r"rank 1 on 127\.0\.0\.1 has closed its connections"):
                finish(engine)
        finally:
            engine.ranks.close()
