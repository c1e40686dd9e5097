"""The whole engine against transformers: every native family, and every way a step is put together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.params import SamplingParams
from engine.api.request import Phase
from engine.serving.engine import Engine
from tests.cases import soak
from tests.outputs import Output
from tests.runner.small import FAMILIES, GREEDY, alone, ask, drain, engine_on, turn

PROMPT = [1, *range(40, 77)]  # 38 tokens: two full blocks and a part of a third
OTHERS = [[1, 50], [1, *range(90, 140)], PROMPT[:20]]
ASKED = replace(GREEDY, logprobs=20)


def generate(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    plain = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **plain)
    return whole[0, len(prompt) :].tolist()


def assert_as_in_transformers(model: Any, prompt: Sequence[int], outputs: Output) -> None:
    """Check that each token is the likeliest one and the 20 likeliest have transformers' values."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *outputs.tokens]])).logits[0, len(prompt) - 1 : -1]
    values = logits.log_softmax(-1)
    top = values.topk(20)
    assert outputs.tokens == top.indices[:, 0].tolist()
    found = torch.tensor([[value for _, value in each.top] for each in outputs.logprobs])
    torch.testing.assert_close(found, top.values, atol=1e-4, rtol=0)
    ids = torch.tensor([[token for token, _ in each.top] for each in outputs.logprobs])
    torch.testing.assert_close(values.gather(1, ids), found, atol=1e-4, rtol=0)
    chosen = torch.tensor([each.logprob for each in outputs.logprobs])
    torch.testing.assert_close(chosen, top.values[:, 0], atol=1e-4, rtol=0)
    assert [each.rank for each in outputs.logprobs] == [1] * len(outputs.tokens)


@pytest.mark.parametrize(
    ("name", "count"),
    [("llama", 80), ("mistral", 80), ("qwen2", 40), ("qwen3", 40), *soak(("llama", 200))],
    ids=str,
)
def test_greedy_text_is_that_of_generate(
    checkpoint: Callable[[str], tuple[Path, Any]], name: str, count: int
) -> None:
    folder, theirs = checkpoint(name)
    output = alone(folder, PROMPT, replace(GREEDY, max_tokens=count))
    assert output.tokens == generate(theirs, PROMPT, count)


# The ways to run a request. Each takes an engine and returns the recorded reply to PROMPT.


def run_alone(engine: Engine) -> Output:
    _, output = ask(engine, PROMPT, ASKED)
    drain(engine)
    return output


def beside_others(engine: Engine) -> Output:
    for prompt in OTHERS:
        ask(engine, prompt)
    turn(engine)
    _, output = ask(engine, PROMPT, ASKED)
    ask(engine, OTHERS[0])
    drain(engine)
    return output


def preempted(engine: Engine) -> Output:
    id, output = ask(engine, PROMPT, ASKED)
    for _ in range(9):
        turn(engine)
    engine.preempt(id)
    turn(engine)
    swaps = engine.scheduler.rules.preemption == "swap"
    assert engine.scheduler.requests[id].phase is (Phase.SWAPPED if swaps else Phase.PREEMPTED)
    drain(engine)
    return output


def from_the_prefix_cache(engine: Engine) -> Output:
    ask(engine, PROMPT)
    drain(engine)
    id, output = ask(engine, PROMPT, ASKED)
    turn(engine)
    assert engine.scheduler.requests[id].cached_tokens == 32
    drain(engine)
    return output


def forked(engine: Engine) -> Output:
    id, output = ask(engine, PROMPT, ASKED)
    for _ in range(9):
        turn(engine)
    count, child = len(output.tokens), Output()
    engine.fork(id, child)
    drain(engine)
    whole = Output(output.tokens[:count] + child.tokens, logprobs=output.logprobs[:count] + child.logprobs)
    assert whole.tokens == output.tokens
    return whole


WAYS: dict[str, tuple[Callable[[Engine], Output], dict[str, Any]]] = {
    "alone": (run_alone, {}),
    "batched": (beside_others, {}),
    "chunked": (beside_others, {"max_step_tokens": 8}),
    "recomputed": (preempted, {"preemption": "recompute"}),
    "swapped": (preempted, {"preemption": "swap", "host_blocks": 8}),
    "cached": (from_the_prefix_cache, {}),
    "forked": (forked, {}),
    "crowded": (beside_others, {"blocks": 6, "preemption": "recompute"}),
}


# Depth and most ways concern the scheduler, not families: one family runs every way, and the ways with
# preemptions at both depths; one with windows runs the ways that move its blocks. All of them run in soak.
ANY_FAMILY, MOVING = "chunked", ("recomputed", "swapped", "cached", "forked")


def _case(way: str, name: str, depth: int) -> Any:
    usual = way == ANY_FAMILY or name == "llama" or (name == "gemma3" and way in MOVING)
    usual &= depth == 1 or way in MOVING[:2]
    return pytest.param(way, name, depth, marks=() if usual else pytest.mark.soak)


CASES = [_case(way, name, 1) for way in WAYS for name in FAMILIES] + [_case(way, "llama", 0) for way in WAYS]


@pytest.mark.parametrize(("way", "name", "depth"), CASES)
def test_logits_are_those_of_transformers(
    checkpoint: Callable[[str], tuple[Path, Any]], way: str, name: str, depth: int
) -> None:
    folder, theirs = checkpoint(name)
    run, config = WAYS[way]
    output = run(engine_on(folder, depth=depth, **config))
    assert len(output.tokens) == ASKED.max_tokens
    assert_as_in_transformers(theirs, PROMPT, output)


def test_a_trained_model_writes_the_expected_text(shared: Path) -> None:
    folder = shared / "models" / "stories260K"
    engine = engine_on(folder)
    prompt = engine.tokenizer.encode_raw("")
    _, output = ask(engine, prompt, SamplingParams(temperature=0.0, max_tokens=200))
    drain(engine)
    assert output.text == (folder / "KARPATHY_EXPECTED_GREEDY.txt").read_text()
