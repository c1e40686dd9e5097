"""Several replies to a request are delivered, from a thread and from another process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.host.process import EngineProcess
from engine.host.thread import EngineThread
from engine.start import start


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_beams_samples_and_a_reply_from_given_tokens(llama: Path, tmp_path: Path, kind: str) -> None:
    config = EngineConfig(model=str(llama), device="cpu", blocks=64, seed=0)
    made: dict[str, Callable[[], EngineThread | EngineProcess]] = {
        "thread": lambda: EngineThread(start(config)),
        "process": lambda: EngineProcess(config, tmp_path / "log"),
    }
    host = made[kind]()
    try:
        beams = host.submit([1, 50, 60], SamplingParams(beams=4, n=3, max_tokens=12))
        samples = host.submit([1, 50, 60], SamplingParams(n=3, max_tokens=12, seed=1))
        ranked = beams.results()
        assert [len(each.tokens) for each in ranked] == [12, 12, 12]
        assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
        sampled = samples.results()
        assert len({each.tokens for each in sampled}) == 3
        greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        whole = host.submit([1, 50, 60], greedy).result()
        rest = host.submit([1, 50, 60], greedy, reply_prefix=whole.tokens[:5]).result()
        assert whole.tokens[:5] + rest.tokens == whole.tokens
    finally:
        host.close()
