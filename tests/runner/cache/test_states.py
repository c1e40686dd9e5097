"""A recurrent state in every way that a request lives: it is that of the request's tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from engine.api.cache_spec import CacheSpec, StateSpec
from engine.api.errors import BadInput
from engine.api.params import SPECULATION
from engine.cache_plan import block_size_with
from engine.execution.runner import ModelRunner
from engine.kv.store import KVStore
from engine.models.config_json import read_config
from engine.models.decoder import block
from engine.serving.engine import Engine
from tests.cases import soak
from tests.examples import TIMES
from tests.outputs import Output
from tests.runner.replies.test_company import A, B, Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.rows.test_speculation import LETTERS, always_draft
from tests.runner.small import GREEDY, alone, ask, close_to, drain, engine_on, run_to, turn

PROMPT = [1, *range(40, 88)]  # three full blocks and one token
ASKED = GREEDY.changed(logprobs=0)


@pytest.fixture(scope="session", params=["qwen3_next", *soak("nemotron_h", "lfm2", "falcon_h1")])
def hybrid(request: pytest.FixtureRequest, checkpoint: Callable[[str], tuple[Path, Any]]) -> Path:
    return checkpoint(request.param)[0]


@pytest.fixture(scope="session")
def qwen3_next(checkpoint: Callable[[str], tuple[Path, Any]]) -> Path:
    return checkpoint("qwen3_next")[0]


@pytest.fixture(scope="session")
def nemotron_h(checkpoint: Callable[[str], tuple[Path, Any]]) -> Path:
    return checkpoint("nemotron_h")[0]


def assert_same(output: Output, expected: Output) -> None:
    assert output.reply == expected.reply
    assert close_to(output.logprobs, expected.logprobs)


@settings(max_examples=3 * TIMES)
@given(work=workloads)
def test_other_requests_do_not_change_a_reply(hybrid: Path, work: Workload) -> None:
    assert_nothing_changes(engine_for(hybrid, work), hybrid, work)


@pytest.mark.parametrize("step_tokens", [*soak(1), 7, *soak(16, 31)])
def test_how_a_prompt_is_cut_changes_nothing(hybrid: Path, step_tokens: int) -> None:
    engine = engine_on(hybrid, max_step_tokens=step_tokens)
    for other in (PROMPT[:20], [1, 5]):
        ask(engine, other)
    _, output = ask(engine, PROMPT, ASKED)
    drain(engine)
    assert_same(output, alone(hybrid, PROMPT, ASKED))


@pytest.mark.parametrize("kind", ["ngram", *soak("suffix")])
def test_rejected_drafts_leave_no_trace(hybrid: Path, kind: str) -> None:
    """Also where a block ends between a draft that is accepted and one that is not."""
    engine = always_draft(engine_on(hybrid))
    params = ASKED.changed(max_tokens=70, logit_bias=LETTERS, temperature=0.8, seed=3)
    _, output = ask(engine, [1, A, B, A, B], params.changed(speculate=kind))
    drain(engine)
    assert_same(output, alone(hybrid, [1, A, B, A, B], params))
    total = engine.scheduler.speculator.total()
    assert 3 <= total.accepted < total.drafted


def test_a_prefix_is_found_up_to_its_last_full_block(hybrid: Path) -> None:
    engine = engine_on(hybrid)
    ask(engine, PROMPT[:40])
    drain(engine)
    id, output = ask(engine, PROMPT, ASKED)
    turn(engine)
    assert engine.scheduler.requests[id].cached_tokens == 32
    drain(engine)
    assert_same(output, alone(hybrid, PROMPT, ASKED))


@pytest.mark.parametrize("depth", [0, 1])
def test_a_fork_shares_the_blocks_of_whole_states(hybrid: Path, depth: int) -> None:
    """One step ahead, the parent's state is already that of a token which the fork samples again."""
    engine = engine_on(hybrid, depth=depth, prefix_cache=False)
    id, output = ask(engine, PROMPT, ASKED)
    run_to(engine, output, 5)
    count, child = len(output.tokens), Output()
    fork = engine.fork(id, child)
    assert engine.scheduler.requests[fork].launched in (48, len(PROMPT) + count - 1)
    drain(engine)
    expected = alone(hybrid, PROMPT, ASKED)
    assert_same(output, expected)
    assert child.tokens == expected.tokens[count:]
    assert close_to(child.logprobs, expected.logprobs[count:])


def test_a_step_that_runs_out_of_memory_halfway_is_not_counted_twice(hybrid: Path) -> None:
    """The states of its first layers are already those after it."""
    engine, calls = engine_on(hybrid), [0]
    output = ask(engine, PROMPT, ASKED)[1]
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    last = runner.model.blocks[-1]
    forward = last.forward

    def failing(*args: Any) -> None:
        calls[0] += 1
        if calls[0] in (1, 6):
            raise torch.OutOfMemoryError("CUDA out of memory")
        forward(*args)

    last.forward = failing
    try:
        drain(engine)
    finally:
        del last.forward
    assert calls[0] > 6
    assert_same(output, alone(hybrid, PROMPT, ASKED))


def test_states_survive_a_restart_on_disk(hybrid: Path, tmp_path: Path) -> None:
    config = {"kv_disk": f"{tmp_path}:1", "preemption": "swap"}
    first = engine_on(hybrid, **config)
    ask(first, PROMPT)
    drain(first)
    first.close()
    engine = engine_on(hybrid, **config)
    id, output = ask(engine, PROMPT, ASKED)
    turn(engine)
    request = engine.scheduler.requests[id]
    drain(engine)
    assert request.cached_tokens == 48
    assert_same(output, alone(hybrid, PROMPT, ASKED))


@pytest.mark.parametrize("scheme", ["int8", *soak("int4", "fp8")])
def test_a_scheme_compresses_the_keys_beside_states(qwen3_next: Path, scheme: str) -> None:
    engine = engine_on(qwen3_next, blocks=None)
    ask(engine, PROMPT)
    drain(engine)
    engine.set_kv_scheme(scheme)
    found = ask(engine, PROMPT, ASKED)[1]
    drain(engine)
    state, keys, _ = engine.runner.store.layers
    assert state.state is not None and state.state.dtype is torch.float32 and keys.key_scales is not None
    exact = alone(qwen3_next, PROMPT, ASKED)
    assert found.tokens[0] == exact.tokens[0]
    assert 1e-6 < abs(found.logprobs[0].logprob - exact.logprobs[0].logprob) < 0.3


def test_drafts_of_another_model(hybrid: Path, llama: Path) -> None:
    engine = always_draft(engine_on(hybrid, draft=str(llama)))
    params = ASKED.changed(max_tokens=70, logit_bias=LETTERS, temperature=0.8, seed=3)
    _, output = ask(engine, [1, A, B, A, B], params.changed(speculate="draft", draft_tokens=4))
    drain(engine)
    assert_same(output, alone(hybrid, [1, A, B, A, B], params))
    assert 0 < engine.scheduler.speculator.total().accepted < engine.scheduler.speculator.total().drafted


def test_a_resize_keeps_states(hybrid: Path) -> None:
    engine = engine_on(hybrid, blocks=None)
    _, output = ask(engine, PROMPT, ASKED)
    run_to(engine, output, 3)
    held = engine.scheduler.running[0].blocks
    engine.runner.store.resize(40, held)
    drain(engine)
    assert_same(output, alone(hybrid, PROMPT, ASKED))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kv_window": 64}, "kv_window is not available: some layers of this model keep a recurrent state"),
        ({"kv_budget": 128}, "kv_budget is not available: some layers of this model keep a recurrent state"),
        ({"exit_layer": 1}, "exit_layer: .* keeps a recurrent state, which drafts would change"),
    ],
    ids=lambda case: "",
)
def test_what_states_cannot_do_is_refused_by_name(
    qwen3_next: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        engine_on(qwen3_next, **config)


def test_heads_that_cannot_be_split_are_named(qwen3_next: Path) -> None:
    """Without starting ranks, each of which would find this."""
    config = read_config(qwen3_next)
    with (
        torch.device("meta"),
        pytest.raises(BadInput, match="2 key heads of linear attention cannot be split into 4 equal shares"),
    ):
        block(config, 0, torch.float32, 4)


def test_a_draft_model_with_states_is_refused_by_name(llama: Path, hybrid: Path) -> None:
    with pytest.raises(BadInput, match="cannot go back to before a draft"):
        engine_on(llama, draft=str(hybrid))


def test_a_block_takes_the_memory_of_its_state(qwen3_next: Path) -> None:
    engine: Engine = engine_on(qwen3_next)
    store, heads = engine.runner.store, 4
    kept = heads * 16 * 12 + 2 * (2 * 2 * 16 + heads * 12)  # matrices, and two inputs of the convolution
    assert store.nbytes == 64 * 4 * (2 * kept + 16 * 2 * 2 * 24)  # two layers with states, one with keys
    assert store.nbytes == 64 * store.block_bytes(store.specs, 16, torch.float32)


@pytest.mark.parametrize("way", ["whole", "cut", "cached"])
def test_chunks_in_16_bits_give_nearly_the_states_of_float32(nemotron_h: Path, way: str) -> None:
    """Chunks begin at fixed positions, but a step may begin and end within one."""
    exact = alone(nemotron_h, PROMPT, ASKED)
    engine = engine_on(nemotron_h, dtype="bfloat16", max_step_tokens=13 if way == "cut" else None)
    if way == "cached":
        ask(engine, PROMPT[:40])
        drain(engine)
    found = ask(engine, PROMPT, ASKED)[1]
    drain(engine)
    assert found.tokens[0] == exact.tokens[0]
    assert 1e-6 < abs(found.logprobs[0].logprob - exact.logprobs[0].logprob) < 0.03


def test_a_layer_that_mixes_no_tokens_takes_no_memory(nemotron_h: Path) -> None:
    store = engine_on(nemotron_h).runner.store
    kept = 8 * 16 * 12 + 2 * (2 * 2 * 16 + 8 * 12)  # matrices, and two inputs of the convolution
    assert [len([*each.tensors()]) for each in store.layers] == [2, 0, 2, 0]
    assert (
        store.nbytes
        == 64 * 4 * (kept + 16 * 2 * 2 * 24)
        == 64 * store.block_bytes(store.specs, 16, torch.float32)
    )


def test_speculation_by_the_model_itself_is_not_offered(hybrid: Path) -> None:
    offered = engine_on(hybrid).limits.speculation
    assert "exit" in SPECULATION and "exit" not in offered


def test_a_large_state_has_large_blocks() -> None:
    """In Qwen3-Next a block has 75 MB of states, whatever its size."""
    keys = CacheSpec(heads=16, kv_heads=2, key_dim=256, value_dim=256, scale=1.0)
    large, small = (
        CacheSpec.of_state(StateSpec(heads=heads, key_heads=heads // 2, key_dim=128, value_dim=128, taps=4))
        for heads in (32, 2)
    )
    assert KVStore.state_bytes((large,) * 36 + (keys,) * 12) == 36 * 4 * (32 * 128 * 128 + 3 * 8192)
    assert block_size_with((large, keys), 16) == 256
    assert block_size_with((small, keys), 16) == block_size_with((keys,) * 48, 16) == 16
