"""Ranks and stages on two GPUs or four: the replies of one process, a step that fails, and one that dies."""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.workload import capture_all
from engine.api.config import EngineConfig
from engine.api.errors import EngineDead
from engine.api.params import SamplingParams
from engine.distributed.crews import started
from engine.models.decoder import Decoder
from engine.serving.engine import Engine
from engine.start import start
from tests.distributed import broken_rank
from tests.models.tiny import write_config
from tests.outputs import Output
from tests.runner.rows.test_speculation import LETTERS, always_draft
from tests.runner.small import make
from tests.waiting import becomes

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
peers = pytest.importorskip("engine.distributed.peers", exc_type=ImportError)  # it needs Triton
FOUR = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four GPUs")
FOLDER = Path(__file__).parent
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def engine_on(folder: Path, device: str, tp: int, **config: Any) -> Engine:
    plain: dict[str, Any] = {"blocks": 24, "host_blocks": 8, "max_running": 9, "max_step_tokens": 64}
    return start(EngineConfig(model=str(folder), device=device, tp=tp, seed=0, **plain | config))


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def replies(engine: Engine) -> list[tuple[list[int], list[int]]]:
    """Requests of all kinds that join, leave and are preempted: their prompts and replies."""
    draw, prompts, outputs = random.Random(3), [], []
    for number in range(20):
        odd: dict[str, Any] = (
            {"top_k": 20, "top_p": 0.9}, {"logprobs": 3}, {"logit_bias": {5: 3.0}},
            {"frequency_penalty": 0.5}, {},
        )[number % 5]  # fmt: skip
        params = SamplingParams(
            temperature=0.7 * (number % 3 > 0), max_tokens=10 + number, ignore_eos=True, seed=number, **odd
        )
        outputs.append(Output())
        prompts.append([draw.randrange(3, 90) for _ in range(draw.randint(1, 60))])
        engine.submit(prompts[-1], params, outputs[-1])
        for _ in range(draw.randint(0, 3)):
            engine.step()
            engine.scheduler.check()
    finish(engine)
    assert not any(each.error for each in outputs), outputs[0].error
    return list(zip(prompts, (each.tokens for each in outputs), strict=True))


def likelihoods(engine: Engine, tokens: list[int]) -> list[float]:
    found: list[float] = []
    scored = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    engine.submit(tokens, scored, lambda delta: found.extend(each.logprob for each in delta.prompt_logprobs))
    finish(engine)
    assert len(found) == len(tokens) - 1
    return found


def same_replies(one: Engine, engine: Engine) -> int:
    """How many replies are the same. The others are as likely in both engines: a last bit decided a token."""
    expected, found = replies(one), replies(engine)
    for (prompt, reply), (_, other) in zip(found, expected, strict=True):
        if reply != other:
            text = prompt + reply
            assert likelihoods(engine, text) == pytest.approx(likelihoods(one, text), abs=1e-4)
    return sum(a == b for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("family", "depth", "device", "same", "tp"),
    # The last bits of gemma3's logits decide two of its tokens, between a GPU and a CPU too.
    # Of four ranks, two share a KV head.
    [
        ("qwen3", 1, "cpu", 19, 2),
        ("qwen3", 0, "cpu", 19, 2),
        ("gemma3", 1, "cuda", 18, 2),
        ("qwen3_moe", 1, "cpu", 19, 2),
        pytest.param("qwen3", 1, "cpu", 19, 4, marks=FOUR),
        pytest.param("qwen3", 0, "cpu", 19, 4, marks=FOUR),
        pytest.param("gemma3", 1, "cuda", 18, 4, marks=FOUR),
        pytest.param("qwen3_moe", 1, "cpu", 19, 4, marks=FOUR),
    ],
)
def test_replies_equal_those_of_one_device(
    tmp_path: Path, family: str, depth: int, device: str, same: int, tp: int
) -> None:
    make(family, tmp_path)
    one = engine_on(tmp_path, device, 1, depth=depth)
    engine = engine_on(tmp_path, "cuda", tp, depth=depth)
    try:
        if depth == 0:  # as in an idle engine, all graphs are there before a step needs one
            engine.submit([1, 5, 9, 30], GREEDY, Output())
            finish(engine)
            capture_all(engine)
        assert same_replies(one, engine) >= same
        ranks = engine.snapshot().ranks
        assert all(0 < each.joining < 1 and each.traffic > 0 for each in ranks), ranks
    finally:
        engine.ranks.close()


@pytest.mark.parametrize(
    ("family", "depth", "device", "same", "tp"),
    [
        ("qwen3", 1, "cpu", 19, 1),
        ("qwen3", 0, "cpu", 19, 1),
        ("gemma3", 1, "cuda", 18, 1),
        ("cohere2", 1, "cuda", 18, 1),
        pytest.param("qwen3", 1, "cpu", 19, 2, marks=FOUR),
        pytest.param("gemma3", 1, "cuda", 18, 2, marks=FOUR),
        pytest.param("cohere2", 1, "cuda", 18, 2, marks=FOUR),
    ],
)
def test_replies_of_stages_equal_those_of_one_device(
    tmp_path: Path, family: str, depth: int, device: str, same: int, tp: int
) -> None:
    """Over NCCL; steps that decode are graphs in all stages."""
    make(family, tmp_path)
    one = engine_on(tmp_path, device, 1, depth=depth)
    engine = engine_on(tmp_path, "cuda", tp, pp=2, depth=depth)
    try:
        assert same_replies(one, engine) >= same
        engine.submit([1, 5, 9, 30], GREEDY.changed(max_tokens=100), Output())
        finish(engine)
        bubbles = engine.snapshot().bubbles
        assert all(0 < each < 1 for each in bubbles), bubbles
    finally:
        engine.close()


def test_stages_draft_the_same_tokens(drafted: Path) -> None:
    """Both run the draft model, and the drafts of each step are compared."""
    params, found = GREEDY.changed(speculate="draft", logit_bias=LETTERS), []
    for device, pp in (("cpu", 1), ("cuda", 2)):
        engine, outputs = always_draft(engine_on(drafted, device, 1, pp=pp)), [Output() for _ in range(4)]
        try:
            for number, output in enumerate(outputs):
                engine.submit([*range(3 + number, 30)], params, output)
            finish(engine)
            assert engine.snapshot().speculation.drafted > 50
        finally:
            engine.close()
        found.append([each.tokens for each in outputs])
    assert found[0] == found[1]


def test_replies_in_bfloat16(tmp_path: Path) -> None:
    """The fused sum and norm. A token's logit is at most a little below the largest of a float32 model."""
    write_config(tmp_path, dtype="bfloat16")
    engine = engine_on(tmp_path, "cuda", 2, dummy_weights=True, blocks=64)
    prompt = [*range(3, 60)]
    try:
        outputs = [Output() for _ in range(5)]
        for output in outputs:
            engine.submit(prompt, GREEDY, output)
        finish(engine)
    finally:
        engine.ranks.close()
    assert len({tuple(each.tokens) for each in outputs}) == 1
    alone = engine_on(tmp_path, "cuda", 1, dummy_weights=True, blocks=64)
    model: Any = alone.runner.model
    assert isinstance(model, Decoder)
    ids = torch.tensor(prompt + outputs[0].tokens, device="cuda")
    with torch.inference_mode():
        logits = model.float().logits(model.forward(ids, torch.arange(len(ids), device="cuda"), _attend))
    chosen = logits[len(prompt) - 1 : -1].gather(1, ids[len(prompt) :, None])[:, 0]
    assert (logits[len(prompt) - 1 : -1].amax(1) - chosen).max() < 0.1


WIDE = {
    "hidden_size": 256,
    "intermediate_size": 2048,
    "head_dim": 64,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def scored(engine: Engine) -> list[float]:
    draw = random.Random(1)
    return [each for _ in range(4) for each in likelihoods(engine, [draw.randrange(96) for _ in range(60)])]


def mean_distance(one: list[float], other: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


@pytest.mark.parametrize("scheme", ["int8", "int4", "int4-32", "int4-128", "fp8"])
def test_quantized_ranks_are_as_exact_as_one_gpu(tmp_path: Path, scheme: str) -> None:
    """Requests of all kinds run, in whose steps the ranks' tokens are compared."""
    write_config(tmp_path, **WIDE)
    dummy: dict[str, Any] = {"dummy_weights": True, "blocks": 64, "prefix_cache": False}
    exact = scored(engine_on(tmp_path, "cuda", 1, **dummy))
    alone = scored(engine_on(tmp_path, "cuda", 1, quantization=scheme, **dummy))
    engine = engine_on(tmp_path, "cuda", 2, quantization=scheme, **dummy)
    try:
        found = scored(engine)
        assert mean_distance(found, exact) < 1.5 * mean_distance(alone, exact)
        assert scored(engine) == found
        assert len(replies(engine)) == 20
    finally:
        engine.ranks.close()


def test_the_scheme_of_ranks_changes_while_they_reply(tmp_path: Path) -> None:
    write_config(tmp_path, **WIDE)
    engine = engine_on(tmp_path, "cuda", 2, dummy_weights=True, blocks=64, prefix_cache=False)
    try:
        before, found = scored(engine), dict[str, list[float]]()
        for scheme in ("int8", "int4", "fp8", "none"):
            engine.submit([1, 5, 9, 30], GREEDY.changed(max_tokens=60), output := Output())
            engine.step()
            engine.set_quantization(scheme)
            finish(engine)
            assert engine.runner.weights_scheme == scheme and output.finish and not output.error
            found[scheme] = scored(engine)
        assert found["none"] == before
        assert len({tuple(each) for each in found.values()}) == 4
    finally:
        engine.ranks.close()


def _attend(index: int, q: torch.Tensor, k: torch.Tensor, v: Any) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1).transpose(0, 1)[None] for each in (k, v))
    found = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, is_causal=True)
    return found[0].transpose(0, 1)


def test_a_step_that_fails_on_one_rank_fails_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's kernels wait for those of rank 1, which never come. The next requests run on both again."""
    make("qwen3", tmp_path)
    expected = Output()
    one = engine_on(tmp_path, "cuda", 1)
    one.submit([1, 5, 9, 30], GREEDY, expected)
    finish(one)
    monkeypatch.setattr(started, "COMMAND", (sys.executable, "-P", str(FOLDER / "broken_rank.py")))
    engine = engine_on(tmp_path, "cuda", 2)
    try:
        errors = []
        for _ in range(3):
            engine.submit([1, 5, 9, 30], GREEDY, output := Output())
            finish(engine)
            errors.append(output.error)
        assert ["is broken" in each for each in errors] == [True, True, False], errors
        assert output.tokens == expected.tokens
        for _ in range(broken_rank.DIFFERS):
            engine.submit([1, 5, 9, 30], GREEDY, Output())
        with pytest.raises(EngineDead, match="rank 1 sampled different tokens than rank 0 in step"):
            finish(engine)
    finally:
        engine.ranks.close()


@pytest.mark.parametrize(
    ("tp", "pp"), [(2, 1), (1, 2), pytest.param(4, 1, marks=FOUR), pytest.param(2, 2, marks=FOUR)]
)
def test_a_rank_that_dies_ends_the_engine(tmp_path: Path, tp: int, pp: int) -> None:
    make("qwen3", tmp_path)
    engine = engine_on(tmp_path, "cuda", tp, pp=pp)
    try:
        engine.submit([1, 5, 9, 30], GREEDY.changed(max_tokens=100), Output())
        for _ in range(5):
            engine.step()
        os.kill(engine.snapshot().ranks[1].pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="rank 1 was killed by SIGKILL"):
            finish(engine)
        assert becomes(lambda: engine.runner.device_error() or "")
    finally:
        engine.ranks.close()
