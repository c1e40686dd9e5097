"""The engine on a GPU gives the same replies as on a CPU.

The models are float32, where rounding almost never changes a token. Graphs, overlap and small caches are
chosen by the random workloads of this folder.
"""

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.api.params import SPECULATION, SamplingParams
from engine.execution import cache_blocks
from engine.execution.cuda.arrivals import Arrivals, Wait
from engine.execution.cuda.graphs import DecodeSteps
from engine.execution.runner import ModelRunner
from engine.kv.host_memory import Pairs
from engine.scheduling.step import Rows, Step
from engine.serving.engine import Engine
from engine.serving.warm_up import WarmUp
from tests.outputs import Outputs
from tests.runner.replies.test_company import A, B, Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.rows.test_speculation import KINDS, LETTERS, always_draft, speculative
from tests.runner.small import GREEDY, alone, ask, drain, engine_on, turn

pytestmark = pytest.mark.cuda

PROMPT = [1, *range(60, 100)]


@settings(max_examples=12, phases=[Phase.generate])
@given(work=workloads)
def test_other_requests_do_not_change_a_reply(llama: Path, work: Workload) -> None:
    assert_nothing_changes(engine_for(llama, work, device="cuda"), llama, work)


@settings(max_examples=8, phases=[Phase.generate])
@given(
    work=workloads,
    kinds=st.lists(KINDS, min_size=5, max_size=5),
    others=st.lists(KINDS, min_size=5, max_size=5),
)
def test_drafts_do_not_change_a_reply(
    drafted: Path, work: Workload, kinds: list[str], others: list[str]
) -> None:
    engine = always_draft(engine_for(drafted, work, device="cuda"))
    assert_nothing_changes(engine, drafted, speculative(work, kinds, others))


@pytest.mark.parametrize("family", ["qwen3_next", "nemotron_h", "lfm2", "falcon_h1"])
@settings(max_examples=8, phases=[Phase.generate])
@given(work=workloads, kinds=st.lists(st.sampled_from(["", "ngram"]), min_size=5, max_size=5))
def test_states_in_graphs_are_those_of_a_request_alone(
    checkpoint: Callable[[str], tuple[Path, Any]], family: str, work: Workload, kinds: list[str]
) -> None:
    """Also where a graph has the drafts of a request as rows of their own."""
    folder = checkpoint(family)[0]
    engine = always_draft(engine_for(folder, work, device="cuda"))
    assert_nothing_changes(engine, folder, speculative(work, kinds, kinds))
    assert engine.runner.graph_sizes


@pytest.mark.parametrize(
    ("family", "kv"),
    [
        ("llama", "none"),
        ("gemma3", "none"),
        ("llama4", "none"),
        ("bloom", "none"),
        ("llama", "int8"),
        ("llama", "int4"),
    ],
)
def test_pieces_of_prompts_run_in_graphs_beside_replies(
    checkpoint: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch, family: str, kv: str
) -> None:
    """Kernel by kernel, the same engine gives the same."""
    folder, hidden = checkpoint(family)[0], DecodeSteps.hidden
    held: list[bool] = []

    def noted(steps: DecodeSteps, rows: Rows, ids: np.ndarray, wait: Wait) -> torch.Tensor | None:
        found = hidden(steps, rows, ids, wait)
        held.append(found is not None)
        return found

    monkeypatch.setattr(DecodeSteps, "hidden", noted)
    replies = []
    for graphs in (True, False):
        engine = engine_on(
            folder, device="cuda", depth=1, max_step_tokens=40, prefix_cache=False, kv_scheme=kv
        )
        engine.set_switch("graphs", graphs)
        outputs = [ask(engine, [1, *range(40, 60 + 30 * n)])[1] for n in range(3)]
        for n in range(3):
            for _ in range(4):
                turn(engine)
            outputs.append(ask(engine, [1, *range(40, 80 + n)])[1])
        drain(engine)
        replies.append([each.reply for each in outputs])
    assert replies[0] == replies[1]
    assert len(held) > 6 and all(held)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", SPECULATION)
def test_a_long_reply_with_drafts(drafted: Path, kind: str, depth: int) -> None:
    params = SamplingParams(
        temperature=0.8, max_tokens=80, ignore_eos=True, seed=3, logit_bias=LETTERS, logprobs=1
    )
    engine = always_draft(engine_on(drafted, device="cuda", depth=depth))
    _, output = ask(engine, [1, A, B, A, B], params.changed(speculate=kind))
    drain(engine)
    assert output.reply == alone(drafted, [1, A, B, A, B], params).reply
    assert engine.scheduler.speculator.total().accepted >= 3


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("many", [{"beams": 4, "n": 3}, {"n": 3}, {"n": 2, "best_of": 4}], ids=str)
def test_several_replies(llama: Path, many: dict[str, int], depth: int) -> None:
    """Beams share blocks, diverge and end, while plain rows run in graphs beside them."""
    warm = {} if "beams" in many else {"temperature": 0.9, "seed": 3}
    params = SamplingParams(max_tokens=20, ignore_eos=True, **{"temperature": 0.0} | warm | many)
    results = []
    for device in ("cpu", "cuda"):
        engine = engine_on(llama, device=device, depth=depth, blocks=40)
        several, plain = Outputs(), Outputs()
        engine.submit(PROMPT, params, several)
        for _ in range(3):
            turn(engine)
        engine.submit(PROMPT[:5], SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True), plain)
        drain(engine)
        results.append((several.replies, plain.replies))
    assert results[0] == results[1]


def test_graphs_may_be_switched_off_and_on(llama: Path) -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=60, ignore_eos=True)
    engine = engine_on(llama, device="cuda", depth=1)
    _, output = ask(engine, PROMPT, params)
    for turns in range(1000):
        if not engine.busy:
            break
        engine.set_switch("graphs", turns // 7 % 2 == 0)
        turn(engine)
    assert output.reply == alone(llama, PROMPT, params).reply


@pytest.mark.parametrize("graphs", [True, False])
def test_every_kernel_is_compiled_before_its_first_launch(
    llama: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    asked = uncompiled(monkeypatch)
    engine = engine_on(llama, device="cuda", depth=1, prefix_cache=False)
    engine.set_switch("graphs", graphs)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=4, ignore_eos=True)
    variants: tuple[dict[str, Any], ...] = (
        {}, {"top_k": 5}, {"frequency_penalty": 0.5}, {"logit_bias": {41: 4.0}}, {"logprobs": 3}
    )  # fmt: skip
    for length, variant in zip((3, 6, 12, 25, 50), variants, strict=True):
        _, output = ask(engine, [1, *range(40, 40 + length)], params.changed(**variant))
        drain(engine)
        assert len(output.tokens) == 4
    assert len(set(asked[True])) > 5
    assert asked[False] == []


def test_the_warm_up_compiles_in_parallel_what_its_steps_launch(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = uncompiled(monkeypatch)
    engine = engine_on(llama, device="cuda", depth=1, prefix_cache=False, host_blocks=4)
    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    while not warm_up.share:  # the kernels compile
        warm_up.step()
    ahead = set(asked[True])
    while warm_up.share < 1:
        warm_up.step()
    assert isinstance(engine.runner, ModelRunner)
    store = engine.runner.store
    assert store.host_ready(least=4) == 4
    for copy in (store.swap_out, store.swap_in):
        copy([(0, 0), (2, 2)])  # no neighbors, which are gathered
    assert asked[False] == []
    assert len(ahead) > 5
    assert ahead >= {"_penalize", "_note", "_bias", "_of_chunk", "_of_row"}
    assert {*asked[True]} == ahead


@pytest.mark.parametrize("slowdown", [None, 2.0])
def test_graphs_of_the_warm_up_give_the_same_replies(
    llama: Path, monkeypatch: pytest.MonkeyPatch, slowdown: float | None
) -> None:
    """They are captured without running, and replayed by the first steps that need them."""
    engine = engine_on(llama, device="cuda", depth=1, prefix_cache=False, max_slowdown=slowdown)
    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    while not warm_up.over:
        warm_up.step()
    captured: list[object] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda *given, **named: captured.append(named))
    params = GREEDY.changed(max_tokens=8)
    outputs = [ask(engine, [1, *range(60, 70 + more)], params)[1] for more in range(8)]
    drain(engine)
    assert not captured
    for more, output in enumerate(outputs):
        assert output.reply == alone(llama, [1, *range(60, 70 + more)], params).reply


def uncompiled(monkeypatch: pytest.MonkeyPatch) -> dict[bool, list[str]]:
    """Make all kernels uncompiled. Returns the names of those compiled ahead (True), and others."""
    from triton import knobs
    from triton.runtime.jit import JITFunction

    from engine import kernels
    from engine.kernels.triton import precompile

    monkeypatch.setattr(precompile, "load_ahead", lambda *configuration, alone: None)
    asked: dict[bool, list[str]] = {True: [], False: []}
    monkeypatch.setattr(
        knobs.runtime,
        "jit_cache_hook",
        lambda *, fn, **rest: asked[precompile.precompiling()].append(fn.name),
    )
    for found in pkgutil.walk_packages(kernels.__path__, "engine.kernels."):
        for each in vars(importlib.import_module(found.name)).values():
            if isinstance(each, JITFunction):
                monkeypatch.setattr(each, "device_caches", defaultdict(each.create_binder))
    return asked


def test_a_thread_runs_an_engine_on_another_gpu_than_its_first(llama: Path) -> None:
    engine = engine_on(llama, device=f"cuda:{torch.cuda.device_count() - 1}", depth=1)

    def reply() -> object:
        engine.runner.enter_thread()
        _, output = ask(engine, PROMPT)
        drain(engine)
        return output.reply

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(reply).result() == alone(llama, PROMPT).reply


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("kv", ["none", "int8"])
@pytest.mark.parametrize("least", [1, 16])
def test_a_step_that_is_launched_while_its_blocks_arrive_gives_the_same_reply(
    llama: Path, monkeypatch: pytest.MonkeyPatch, kv: str, graphs: bool, least: int
) -> None:
    """By layer, or, where blocks are gathered, as a whole."""
    followed, by_layer, follow = list[bool](), waits_by_layer(monkeypatch), ModelRunner.follow

    def noted(runner: ModelRunner, transfer: int) -> bool:
        followed.append(follow(runner, transfer))
        return followed[-1]

    monkeypatch.setattr(ModelRunner, "follow", noted)
    monkeypatch.setattr(cache_blocks, "LEAST_RUN", least)
    engine = engine_on(
        llama, device="cuda", kv_scheme=kv, blocks=16, host_blocks=64, preemption="swap", prefix_cache=True
    )
    engine.set_switch("graphs", graphs)
    pinned(engine)
    slow_copies(engine)
    replies = [resumed(engine) for _ in range(4)]
    assert any(followed), "no step was launched while its blocks arrived"
    assert any(by_layer) == (least == 1)
    assert replies == replies[:1] * 4


def test_a_step_that_waits_by_layer_has_its_graph_after_the_warm_up(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_blocks, "LEAST_RUN", 1)
    engine = engine_on(llama, device="cuda", blocks=16, host_blocks=64, preemption="swap", prefix_cache=True)
    pinned(engine)
    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    while not warm_up.over:
        warm_up.step()
    first, by_layer, captured = resumed(engine), waits_by_layer(monkeypatch), list[object]()
    slow_copies(engine)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda *given, **named: captured.append(named))
    assert [resumed(engine) for _ in range(3)] == [first] * 3
    assert any(by_layer) and not captured


def waits_by_layer(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step from now on waits by layer."""
    found, awaited = list[bool](), Arrivals.awaited

    @contextmanager
    def watched(arrivals: Arrivals, step: Step, *, kernels: bool) -> Iterator[None]:
        with awaited(arrivals, step, kernels=kernels):
            found.append(arrivals.wait is not None)
            yield

    monkeypatch.setattr(Arrivals, "awaited", watched)
    return found


def pinned(engine: Engine) -> None:
    """Wait for the host memory: blocks that are forgotten before it is there are computed again."""
    assert isinstance(engine.runner, ModelRunner)
    store = engine.runner.store
    assert store.host_ready(least=store.host_blocks) == store.host_blocks


def slow_copies(engine: Engine) -> None:
    """A load has not ended when the next step is launched."""
    assert isinstance(engine.runner, ModelRunner)
    copy = engine.runner.store.mover

    def slow(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], pairs: Pairs) -> None:
        torch.cuda._sleep(10**8)
        copy(sources, targets, pairs)

    engine.runner.store.mover = slow


def resumed(engine: Engine) -> list[int]:
    """The reply to a chat whose blocks are in host memory, after the first time."""
    _, output = ask(engine, [1, *range(30, 120), *range(30, 120)])
    drain(engine)
    engine.scheduler.pool.forget_all()
    return output.reply


def test_engines_on_two_threads_capture_their_own_graphs(llama: Path) -> None:
    prompts = [[1, *range(60, 70 + more)] for more in range(8)]

    def replies_at(depth: int) -> list[list[int]]:
        engine = engine_on(llama, device="cuda", depth=depth)
        outputs = [ask(engine, prompt)[1] for prompt in prompts]
        drain(engine)
        return [each.reply for each in outputs]

    with ThreadPoolExecutor(2) as pool:
        for replies in pool.map(replies_at, (0, 1)):
            assert replies == [alone(llama, prompt).reply for prompt in prompts]


def test_a_step_that_compiles_or_captures_is_no_cost(checkpoint: Callable[[str], tuple[Path, Any]]) -> None:
    """Its kernels may be in Triton's cache, but the engine cannot know."""
    engine = engine_on(checkpoint("llama")[0], device="cuda", prefix_cache=False)
    for known in (False, False, True):  # the first run of all is not captured
        ask(engine, list(range(10, 60)))
        drain(engine)
        assert (engine.scheduler.costs.recompute(50) > 0) == known
