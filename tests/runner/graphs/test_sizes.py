"""Some sizes are captured first. A step of another size takes a larger graph until its own is worth it."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.workload import capture_all
from engine import cache_plan
from engine.api.config import EngineConfig
from engine.cache_plan import step_tokens
from engine.execution.cuda.graphs import SIZES
from engine.execution.cuda.sampling_fields import SamplingFlags
from engine.execution.cuda.sizes import CapturedGraphs, Graph, first_sizes, piece_sizes
from engine.execution.runner import ModelRunner
from engine.serving.warm_up import WarmUp
from tests.runner.small import GREEDY, alone, ask, drain, engine_on

LIMIT = 128  # steps in larger graphs


@given(st.integers(1, 512))
def test_a_size_that_comes_first_is_large_enough_for_each(most: int) -> None:
    sizes = [*(size for size in SIZES if size < most), most]
    first = first_sizes(sizes)
    assert set(first) <= set(sizes) and first[-1] == most
    for size in sizes:
        assert size <= min(each for each in first if each >= size) <= 1.5 * size
    assert all(later > earlier for earlier, later in pairwise(first))


def test_those_of_256_rows_are_few() -> None:
    assert first_sizes([size for size in SIZES if size <= 256]) == [1, 2, 4, 8, 24, 48, 80, 128, 200, 256]


PLAIN, FILTERED = (
    SamplingFlags(filtered, penalized=False, biased=False, logprobs=False) for filtered in (False, True)
)


def captured(*graphs: Graph) -> CapturedGraphs:
    found = CapturedGraphs([*range(8, 65, 8)], piece_sizes(512))
    for each in graphs:
        found.note(each)
    return found


def test_a_step_without_a_larger_graph_has_its_own() -> None:
    graphs = captured()
    assert [graphs.size_of_batch(rows, PLAIN) for rows in (1, 8, 9, 64)] == [8, 8, 16, 64]
    graphs.note(Graph(64, PLAIN, cut=True))
    assert graphs.size_of_batch(33, PLAIN) == 40, "64 is more than half larger"
    assert graphs.size_of_batch(41, FILTERED) == 48, "its graphs are others"


def test_a_step_takes_the_next_larger_graph_until_its_own_is_worth_it() -> None:
    graphs = captured(Graph(56, PLAIN, cut=True), Graph(64, PLAIN, cut=True))
    assert {graphs.size_of_batch(41, PLAIN) for _ in range(LIMIT)} == {56}
    assert graphs.size_of_batch(41, PLAIN) == 48
    graphs.note(Graph(48, PLAIN, cut=True))
    assert graphs.size_of_batch(41, PLAIN) == 48
    graphs.forget()
    assert graphs.size_of_batch(49, PLAIN) == 56
    graphs.note(Graph(56, PLAIN, cut=True))
    assert graphs.size_of_batch(41, PLAIN) == 56


def test_prompts_always_take_the_same_graph() -> None:
    graphs = captured(Graph(128, None, cut=False, pieces=True, decodes=False))
    assert [graphs.size_of_pieces(tokens) for tokens in (1, 16, 17, 65, 65, 512)] == [16, 16, 32, 80, 80, 512]


def test_a_graph_that_splits_contexts_holds_a_step_that_splits_none() -> None:
    whole, split = (Graph(8, PLAIN, cut=cut) for cut in (False, True))
    for graphs, expected in ((captured(), whole), (captured(split), split), (captured(whole, split), whole)):
        assert graphs.instead_of(whole) == expected
        assert graphs.instead_of(split) == split
    assert captured(split).instead_of(whole._replace(size=16)) == whole._replace(size=16)


def test_full_steps_of_small_models_can_be_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_plan, "FULL_STEPS_ARE_GRAPHS", True)
    gpu, small, large = torch.device("cuda"), piece_sizes(5000), piece_sizes(600)
    config = EngineConfig(model="m")
    assert [step_tokens(config, gpu, graphs) for graphs in (small, large, ())] == [4096, 8192, 8192]
    assert step_tokens(EngineConfig(model="m", max_step_tokens=6000), gpu, small) == 6000
    assert step_tokens(config, torch.device("cpu"), ()) == 512


@pytest.mark.cuda
def test_a_reply_is_the_same_in_a_larger_graph(llama: Path) -> None:
    """Before and after an idle engine has captured the other sizes."""
    engine = engine_on(llama, device="cuda", depth=1, prefix_cache=False, max_running=24)
    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    while warm_up.share < 1:
        warm_up.step()
    assert isinstance(engine.runner, ModelRunner)
    steps = engine.runner._steps
    assert steps is not None
    before, prompts = steps.captures, [[1, *range(60, 70 + more)] for more in range(10)]
    for _ in range(2):
        outputs = [ask(engine, prompt, GREEDY.changed(max_tokens=8))[1] for prompt in prompts]
        drain(engine)
        for prompt, output in zip(prompts, outputs, strict=True):
            assert output.reply == alone(llama, prompt, GREEDY.changed(max_tokens=8)).reply
        found = [graph.size for graph, each in steps._recordings.items() if each._graph and not graph.pieces]
        assert (16 in found) == warm_up.over
        while not warm_up.over:
            warm_up.step()
    assert steps.captures > before


@pytest.mark.cuda
def test_a_benchmark_captures_each_size_beforehand(llama: Path) -> None:
    engine = engine_on(llama, device="cuda", depth=1, prefix_cache=False, max_running=24)
    params = GREEDY.changed(ignore_eos=True)
    ask(engine, [1, 60, 70], params.changed(max_tokens=2))
    drain(engine)  # the first graph of all runs without being captured
    capture_all(engine)
    assert isinstance(engine.runner, ModelRunner)
    steps = engine.runner._steps
    assert steps is not None

    def sizes() -> set[int]:
        graphs = steps._recordings.items()
        return {graph.size for graph, each in graphs if each._graph and not graph.pieces}

    assert sizes() == {1, 2, 4, 8, 16, 24}
    before = {graph for graph, each in steps._recordings.items() if not graph.pieces}
    for more in range(24):
        ask(engine, [1, *range(60, 70 + more)], params.changed(max_tokens=2 + more))
    drain(engine)
    assert {graph for graph in steps._recordings if not graph.pieces} == before


@pytest.mark.cuda
def test_many_prompts_run_in_one_graph_beside_replies(llama: Path) -> None:
    engine = engine_on(llama, device="cuda", depth=1, prefix_cache=False, max_running=64, blocks=512)
    params = GREEDY.changed(max_tokens=8)
    ask(engine, [1, 60, 70, 80], params)
    drain(engine)  # the first graph of all runs without being captured
    prompts = [[1, *(60 + (at * more) % 40 for at in range(60 + more))] for more in range(1, 61)]
    outputs = [ask(engine, prompt, params)[1] for prompt in prompts[:20]]
    for _ in range(3):
        engine.step()
    outputs += [ask(engine, prompt, params)[1] for prompt in prompts[20:]]
    drain(engine)
    assert isinstance(engine.runner, ModelRunner)
    steps = engine.runner._steps
    assert steps is not None
    graphs = {graph: each for graph, each in steps._recordings.items() if graph.pieces and graph.size > 1024}
    assert {graph.decodes for graph, each in graphs.items() if each._graph} == {False, True}
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.reply == alone(llama, prompt, params).reply
