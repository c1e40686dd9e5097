"""Prompts and replies on two GPUs, with the blocks through pinned memory that both processes share."""

from pathlib import Path

import pytest
import torch

from engine.api.config import EngineConfig
from engine.api.events import Event, PromptSent
from engine.api.params import SamplingParams
from engine.fleet.local import start_apart_fleet
from engine.host.process import EngineProcess
from tests.runner.small import make
from tests.waiting import becomes

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_replies_are_those_after_a_hit_in_the_prefix_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.fleet.apart.running_mean", lambda old, new: 1.0)  # no prompt is too short
    make("llama", tmp_path)
    configs = [
        EngineConfig(model=str(tmp_path), device=f"cuda:{gpu}", dtype="bfloat16", blocks=128)
        for gpu in (0, 1)
    ]
    fleet = start_apart_fleet(configs, 1, EngineProcess, tmp_path / "engine.log", 0, room=0.01)
    one, events = EngineProcess(configs[1], tmp_path / "one.log"), list[Event]()
    fleet.subscribe(events.append)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)

    def sent() -> int:
        return sum(each.sent for each in events if isinstance(each, PromptSent))

    def pinned() -> int:
        fleet.submit([*range(33, 70), 97 + len(events) % 20], params).result()
        return sent()

    try:
        assert becomes(pinned, tick=0.2)
        for at in range(6):
            text = [33 + (each * (at + 3)) % 90 for each in range(40 + 31 * at)]
            whole, before = (len(text) - 1) // 16 * 16, sent()
            one.submit(text[:whole], SamplingParams(max_tokens=1, temperature=0.0)).result()
            assert fleet.submit(text, params).result().tokens == one.submit(text, params).result().tokens
            assert becomes(lambda expected=before + whole // 16: sent() == expected)
    finally:
        fleet.close()
        one.close()
