"""A reply on a CPU has the same bits whatever ran beside it, and if its tokens were computed twice."""

import random
from collections.abc import Sequence

import pytest
import torch

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.kernels.cpu.compiled import product
from engine.serving.engine import Engine
from engine.start import start
from tests.outputs import Output

LONG = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=3, logprobs=1)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The built-in model in bfloat16, with little room."""
    if problem := product.why_not(16, torch.bfloat16):
        pytest.skip(f"torch's products may depend on their rows: {problem}")
    return start(EngineConfig(model="pocket", device="cpu", blocks=24))


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(10, 3000), k=length)


def replies(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[tuple[int, float]]]:
    outputs = [Output() for _ in prompts]
    for each, output in zip(prompts, outputs, strict=True):
        engine.submit(each, LONG, output)
    while engine.busy:
        engine.step()
    return [[(each.token, each.logprob) for each in output.logprobs] for output in outputs]


def test_a_preempted_reply_is_the_reply_without_preemption(engine: Engine) -> None:
    prompts = [prompt(number, 50 + 7 * number) for number in range(6)]
    alone = [replies(engine, [each])[0] for each in prompts]
    before = engine.snapshot().preemptions
    assert replies(engine, prompts) == alone
    assert engine.snapshot().preemptions > before


def test_a_reply_to_a_cached_prompt_is_that_to_a_new_one(engine: Engine) -> None:
    whole = prompt(9, 130)
    engine.scheduler.pool.forget_all()
    first = replies(engine, [whole])
    for length in (17, 40, 112, 129):
        engine.scheduler.pool.forget_all()
        replies(engine, [whole[:length]])
        assert replies(engine, [whole]) == first, length
    assert replies(engine, [whole]) == first, "all of it"
