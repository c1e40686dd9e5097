"""Models with layers that keep a window only, whose blocks leave while the other layers keep theirs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import cache_plan
from engine.api.cache_spec import CacheSpec
from engine.api.config import EngineConfig
from engine.cache_plan import block_groups
from engine.execution.draft.drafters import DraftModels
from engine.kv.window import GONE, held
from engine.quality.score import read
from engine.serving.engine import Engine
from engine.serving.recordings.replay import replay
from tests.cases import soak
from tests.distributed.threads import ranked
from tests.outputs import Output
from tests.runner.graphs.plain_stage import staged
from tests.runner.replies.test_transformers import generate
from tests.runner.small import GREEDY, alone, ask, drain, engine_on, run_to, turn, turn_until

LONG = [1, *(40 + n * 7 % 150 for n in range(149))]  # seven windows of 21 tokens
COUNT = 70
REPLY = replace(GREEDY, max_tokens=COUNT)
FAMILIES = [
    "gemma3",
    *soak("gpt_oss", "cohere2", "llama4"),
]  # a layer of all tokens between two with a window

Made = Callable[[str], tuple[Path, Any]]


def reply(engine: Engine, prompt: list[int] = LONG, count: int = COUNT) -> Output:
    _, output = ask(engine, prompt, replace(REPLY, max_tokens=count))
    drain(engine)
    return output


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_reply_is_that_of_transformers(checkpoint: Made, family: str) -> None:
    """And its layers with a window hold the blocks of their window."""
    folder, theirs = checkpoint(family)
    engine = engine_on(folder)
    assert [window is None for window in engine.scheduler.kv.groups.windows] == [True, False, False]
    _, output = ask(engine, LONG, REPLY)
    run_to(engine, output, COUNT - 1)
    [request] = engine.scheduler.running
    whole, *rest = (held(request.blocks[group::3]) for group in range(3))
    assert len(whole) == (len(LONG) + COUNT) // 16 + 1
    assert all(len(each) <= 3 for each in rest), "blocks outside the window are held"
    assert engine.scheduler.pool.in_use == sum(map(len, (whole, *rest)))
    drain(engine)
    assert output.tokens == generate(theirs, LONG, COUNT)


@pytest.mark.parametrize("family", [*FAMILIES, *soak("mistral")])
def test_blocks_that_left_a_window_are_never_read(checkpoint: Made, family: str) -> None:
    """In the tables, block 0 takes their places; here it holds what would spoil every sum."""
    folder, theirs = checkpoint(family)
    engine = engine_on(folder, depth=1, max_step_tokens=40)
    assert engine.scheduler.pool.allocate(1, owner=-1) == [0]
    for layer in engine.runner.store.memory:  # type: ignore[attr-defined]
        for tensor in layer.tensors():
            tensor[0] = torch.nan
    _, output = ask(engine, LONG, REPLY)
    while engine.busy:
        engine.step()
    assert output.tokens == generate(theirs, LONG, COUNT)


def test_a_model_whose_layers_all_have_a_window_holds_that(checkpoint: Made) -> None:
    folder, theirs = checkpoint("mistral")
    engine = engine_on(folder)
    _, output = ask(engine, LONG, REPLY)
    run_to(engine, output, COUNT - 1)
    assert engine.scheduler.pool.in_use <= 3
    drain(engine)
    assert output.tokens == generate(theirs, LONG, COUNT)


def test_the_memory_of_a_given_number_of_blocks_is_the_same(checkpoint: Made) -> None:
    """`blocks` counts those of all layers, as many as the groups share."""
    folder, _ = checkpoint("gemma3")
    engine, plain = engine_on(folder, blocks=20), engine_on(folder, blocks=20, draft=str(folder))
    assert engine.scheduler.pool.size == 3 * plain.scheduler.pool.size == 60
    assert engine.runner.store.nbytes == plain.runner.store.nbytes  # type: ignore[attr-defined]
    assert plain.limits.context == engine.limits.context == 256


def test_a_request_longer_than_full_attention_would_allow(checkpoint: Made) -> None:
    """Of 8 blocks of all layers, 128 tokens; here a third of the layers needs all tokens."""
    folder, theirs = checkpoint("gemma3")
    engine = engine_on(folder, blocks=8, max_step_tokens=32)
    assert engine.limits.context > len(LONG) + COUNT > 8 * 16
    assert reply(engine).tokens == generate(theirs, LONG, COUNT)


@pytest.mark.parametrize(
    "config",
    [
        {"depth": 1, "max_step_tokens": 7},
        {"kv_window": 64, "kv_sinks": 4},
        *soak(
            {"chunked_prefill": False, "max_step_tokens": 48}, {"kv_scheme": "int8"}, {"kv_scheme": "int4"}
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_else_changes_a_reply(checkpoint: Made, family: str, config: dict[str, Any]) -> None:
    """Others beside it, a preemption, the prefix cache: compared with the same engine, with nothing else."""
    folder, _ = checkpoint(family)
    expected = reply(engine_on(folder, prefix_cache=False, **config))
    engine = engine_on(folder, blocks=24, host_blocks=30, preemption="swap", **config)
    (id, first), others = ask(engine, LONG, REPLY), [ask(engine, LONG[:n]) for n in (30, 60)]
    run_to(engine, first, 30)
    engine.preempt(id)
    drain(engine)
    assert first.reply == expected.reply and all(each.finish for _, each in others)
    turns = [*LONG, *first.tokens[:-5]]
    id, again = ask(engine, turns, replace(REPLY, max_tokens=5))
    turn(engine)
    assert engine.scheduler.requests[id].cached_tokens >= len(turns) - 32
    assert engine.scheduler.requests[id].blocks.count(GONE) > 10
    drain(engine)
    assert again.tokens == first.tokens[-5:]


def test_a_fork_goes_on_from_what_its_parent_holds(checkpoint: Made) -> None:
    folder, theirs = checkpoint("gemma3")
    engine = engine_on(folder)
    id, output = ask(engine, LONG, REPLY)
    run_to(engine, output, 20)
    count, child = len(output.tokens), Output()
    engine.fork(id, child)
    assert engine.scheduler.running[-1].gone > 10
    drain(engine)
    expected = generate(theirs, LONG, COUNT)
    assert output.tokens == [*output.tokens[:count], *child.tokens] == expected


def test_beams_share_blocks(checkpoint: Made) -> None:
    folder, _ = checkpoint("gemma3")
    params = replace(GREEDY, beams=3, max_tokens=30)
    found = []
    for config in ({}, {"draft": str(folder)}):  # a draft model needs all blocks
        _, output = ask(engine := engine_on(folder, **config), LONG, params)
        drain(engine)
        found.append((output.tokens, output.reply))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_rejected_drafts(checkpoint: Made, kind: str) -> None:
    folder, _ = checkpoint("gemma3")
    params = replace(REPLY, speculate=kind, draft_tokens=4, logit_bias={41: 22.0, 42: 21.5})
    _, output = ask(engine := engine_on(folder), LONG, params)
    drain(engine)
    assert output.reply == alone(folder, LONG, params).reply


def test_decodes_from_staging_buffers(checkpoint: Made) -> None:
    """As CUDA graphs read them: each group has its tables and places."""
    folder, theirs = checkpoint("gemma3")
    engine = engine_on(folder, depth=1, max_running=5)
    stage = staged(engine)
    outputs = [ask(engine, LONG[:length], REPLY)[1] for length in (150, 40, 99)]
    drain(engine)
    assert {3} <= {*stage.sizes} or {4} <= {*stage.sizes}
    for length, output in zip((150, 40, 99), outputs, strict=True):
        assert output.tokens == generate(theirs, LONG[:length], COUNT)


def test_blocks_on_disk_are_found_by_the_next_engine(checkpoint: Made, tmp_path: Path) -> None:
    folder, theirs = checkpoint("gemma3")
    config = {"kv_disk": f"{tmp_path / 'blocks'}:1", "preemption": "swap"}
    first = reply(engine := engine_on(folder, **config))
    engine.close()
    turns = [*LONG, *first.tokens[:-5]]
    _, again = ask(engine := engine_on(folder, **config), turns, replace(REPLY, max_tokens=5))
    drain(engine)
    assert engine.scheduler.cached_tokens >= len(turns) - 32
    assert again.tokens == generate(theirs, LONG, COUNT)[-5:]
    engine.close()


def test_a_recording_gives_the_same_tokens(checkpoint: Made, tmp_path: Path) -> None:
    folder, theirs = checkpoint("gemma3")
    config = {"blocks": 20, "host_blocks": 20, "preemption": "swap", "depth": 1}
    engine, path = engine_on(folder, **config), tmp_path / "recording"
    engine.record(path)
    id, output = ask(engine, LONG, REPLY)
    run_to(engine, output, 10)
    engine.preempt(id)
    run_to(engine, output, 20)
    engine.fork(id, Output())
    drain(engine)
    engine.stop_recording()
    assert output.tokens == generate(theirs, LONG, COUNT)
    fresh = engine_on(folder, **config)
    steps = list(replay(path, fresh.runner, fresh.origin))  # type: ignore[arg-type]
    assert steps and all(each.now == each.then for each in steps)


def test_two_ranks_have_the_same_groups(checkpoint: Made) -> None:
    folder, theirs = checkpoint("gemma3")
    with ranked(folder, tp=2, blocks=20) as engine:
        assert engine.scheduler.kv.group_count == 3
        assert reply(engine).tokens == generate(theirs, LONG, COUNT)


def test_another_scheme_of_the_cache_and_of_the_weights(checkpoint: Made) -> None:
    """The cache is built again, then it shrinks and grows; all layers see the new tensors."""
    folder, theirs = checkpoint("gemma3")
    engine = engine_on(folder, blocks=None)
    expected = generate(theirs, LONG, COUNT)
    for scheme in ("int8", "none"):
        engine.set_kv_scheme(scheme)
        found = reply(engine).tokens
        assert found == expected if scheme == "none" else len(found) == COUNT
    store = engine.runner.store  # type: ignore[attr-defined]
    for blocks in (200, 2000):
        store.resize(blocks, [3, 7])
        addresses = {each.keys.data_ptr() for each in store.layers}
        assert len(addresses) == 1 and len(store.layers[0].keys) == blocks


def test_a_text_is_scored_as_by_transformers(checkpoint: Made) -> None:
    folder, theirs = checkpoint("gemma3")
    engine = engine_on(folder, blocks=20)
    with torch.inference_mode():
        expected = theirs(torch.tensor([LONG])).logits[0, :-1].log_softmax(-1)
    found = torch.cat([each for each, _ in read(engine.runner, LONG, 1000)])  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def next_turn(engine: Engine, tokens: list[int]) -> list[int]:
    """The reply to a message of a chat whose blocks are in the cache, on the GPU or in host memory."""
    id, output = ask(engine, tokens, replace(REPLY, max_tokens=5))
    turn_until(engine, lambda: engine.scheduler.requests[id].cached_tokens >= len(tokens) - 32)
    drain(engine)
    return output.tokens


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", ["none", "int8", "int4"])
@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "cohere2", "llama4", "mistral"])
def test_replies_on_a_gpu_are_those_of_one_group(
    checkpoint: Made, family: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In graphs and without: beside others, preempted, from the prefix cache, forked.

    Numbers of 16 bits and more are compared with a CPU. In fewer, they round differently there.
    """
    folder, _ = checkpoint(family)
    config = {"kv_scheme": scheme, "depth": 1}
    where = config | {"prefix_cache": False, "device": "cpu" if scheme == "none" else "cuda"}
    short = LONG[:60]
    with monkeypatch.context() as one_group:
        one_group.setattr(cache_plan, "grouped", lambda *_: None)
        expected = reply(engine_on(folder, **where)).tokens
        beside = reply(engine_on(folder, **where), short).tokens
    engine = engine_on(folder, device="cuda", blocks=24, host_blocks=30, preemption="swap", **config)
    assert engine.runner.graphs
    for graphs in (True, True, False):
        engine.set_switch("graphs", graphs)
        (id, first), (_, second), child = ask(engine, LONG, REPLY), ask(engine, short, REPLY), Output()
        run_to(engine, first, 20)
        engine.fork(id, child)
        forked = len(engine.scheduler.requests[id].tokens) - len(LONG)
        run_to(engine, first, 30)
        engine.preempt(id)
        drain(engine)
        assert first.tokens == expected and second.tokens == beside
        assert child.tokens == expected[forked:]
        assert next_turn(engine, [*LONG, *first.tokens[:-5]]) == expected[-5:]


@pytest.mark.parametrize(
    ("config", "chained", "count"),
    [({}, None, 3), ({"pp": 2}, None, 1), ({"exchange": "/x:2:0:"}, None, 1), ({}, "a head", 1)],
)
def test_what_needs_all_blocks_has_one_group(config: dict[str, Any], chained: Any, count: int) -> None:
    """Stages that have other layers, engines that are sent blocks, and heads that draft from the cache."""
    plain = CacheSpec(heads=2, kv_heads=1, key_dim=8, value_dim=8, scale=1.0)
    specs = (plain, replace(plain, window=32), replace(plain, window=32))
    drafts = DraftModels(None, None, chained=chained)
    groups = block_groups(EngineConfig(model="m", **config), specs, 4096, torch.device("cpu"), drafts)
    assert groups.count == count
