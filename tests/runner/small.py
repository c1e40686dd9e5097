"""Small random models with a byte tokenizer, and engines around them."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.api.config import EngineConfig
from engine.api.events import TokenLogprob
from engine.api.params import SamplingParams
from engine.attention.base import Attend
from engine.models.base import LanguageModel
from engine.serving.engine import Engine
from engine.start import start
from tests.models.families import (
    DEEPSEEK,
    EXPERTS,
    FALCON_H1,
    GPT_OSS,
    GRANITE_HYBRID,
    LFM2,
    LINEAR,
    LLAMA4,
    LONE,
    NEMOTRON,
    reference,
)
from tests.outputs import Output, transfers_idle
from tests.runner.letters import VOCAB, byte_tokenizer

MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 21}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "gemma3": ("Gemma3Text", {"head_dim": 24, "sliding_window": 21, "layer_types": MIXED}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK),
    "gpt_oss": ("GptOss", GPT_OSS | {"sliding_window": 21}),
    "llama4": ("Llama4Text", LLAMA4),
    "bloom": ("Bloom", {}),
    "falcon_h1": ("FalconH1", FALCON_H1),
    "lfm2": ("Lfm2", LFM2),
    "qwen3_next": ("Qwen3Next", EXPERTS | LINEAR | {"num_experts": 4}),
    "granitemoehybrid": ("GraniteMoeHybrid", GRANITE_HYBRID),
    "nemotron_h": ("NemotronH", NEMOTRON | {"layers_block_type": LONE[:4]}),
    "cohere2": ("Cohere2", {"head_dim": 24, "sliding_window": 21, "layer_types": MIXED}),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def make(family: str, folder: Path) -> Any:
    """Write a whole checkpoint into the folder; return transformers' model of it."""
    name, changes = FAMILIES[family]
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return reference(name, {"vocab_size": VOCAB, **changes}, folder)


def engine_on(folder: Path, **config: Any) -> Engine:
    plain: dict[str, Any] = {"device": "cpu", "blocks": 64, "seed": 0, "depth": 0}
    return start(EngineConfig(model=str(folder), **plain | config))


class Watched:
    """A model that first calls `watch` with the token ids of each forward. Engines share the model itself."""

    def __init__(self, model: LanguageModel, watch: Callable[[Tensor], None]) -> None:
        self._model, self._watch = model, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        self._watch(ids)
        return self._model.forward(ids, positions, attend)


def turn(engine: Engine) -> bool:
    """Run one step, then check that blocks and queues are consistent."""
    moved = engine.step()
    engine.scheduler.check()
    return moved


def turn_until(engine: Engine, holds: Callable[[], object]) -> None:
    """Run steps as a host does: it pauses if all requests wait for a tier."""
    for _ in range(20_000):
        if holds():
            return
        if not turn(engine) and engine.busy:
            time.sleep(engine.pause())
    raise AssertionError("not done after 20,000 steps")


def run_to(engine: Engine, output: Output, count: int) -> None:
    """Run steps until the reply has this many tokens."""
    turn_until(engine, lambda: len(output.tokens) >= count)


def drain(engine: Engine) -> None:
    """Run steps until all requests have ended, and check that nothing is held."""
    turn_until(
        engine, lambda: not engine.busy and transfers_idle(engine)
    )  # cached blocks may be on their way
    assert engine.scheduler.pool.in_use == 0


def ask(engine: Engine, prompt: Sequence[int], params: SamplingParams = GREEDY) -> tuple[int, Output]:
    output = Output()
    return engine.submit(prompt, params, output), output


def alone(folder: Path, prompt: Sequence[int], params: SamplingParams = GREEDY) -> Output:
    """The oracle: the reply without other requests, prefix cache, preemption or drafts."""
    return _alone(folder, tuple(prompt), params.changed(speculate=""))


@cache
def _alone(folder: Path, prompt: tuple[int, ...], params: SamplingParams) -> Output:
    engine = engine_on(folder, prefix_cache=False)
    _, output = ask(engine, prompt, params)
    drain(engine)
    return output


def close_to(found: Iterable[TokenLogprob], expected: Iterable[TokenLogprob]) -> bool:
    """Return whether both hold the same tokens, with log-probabilities equal to 1e-4."""
    return all(
        a.token == b.token
        and abs(a.logprob - b.logprob) < 1e-4
        and all(abs(x - y) < 1e-4 for (_, x), (_, y) in zip(a.top, b.top, strict=True))
        for a, b in zip(found, expected, strict=True)
    )
