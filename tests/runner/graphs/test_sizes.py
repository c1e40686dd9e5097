"""Some sizes are captured first. A step of another size takes a larger graph until its own is worth it."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.config import EngineConfig
from engine.cache_plan import step_tokens
from engine.execution.cuda.graphs import SIZES
from engine.execution.cuda.sizes import GraphSizes, first_sizes, piece_sizes, sizes_of_pieces
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


def test_a_step_without_a_larger_graph_has_its_own() -> None:
    sizes = GraphSizes([*range(8, 65, 8)])
    assert [sizes.choose(rows, "plain") for rows in (1, 8, 9, 64)] == [8, 8, 16, 64]
    sizes.note(64, "plain")
    assert sizes.choose(33, "plain") == 40, "64 is more than half larger"
    assert sizes.choose(41, "filtered") == 48, "its graphs are others"


def test_a_step_takes_the_next_larger_graph_until_its_own_is_worth_it() -> None:
    sizes = GraphSizes([*range(8, 65, 8)])
    for size in (56, 64):
        sizes.note(size, "plain")
    assert {sizes.choose(41, "plain") for _ in range(LIMIT)} == {56}
    assert sizes.choose(41, "plain") == 48
    sizes.note(48, "plain")
    assert sizes.choose(41, "plain") == 48
    sizes.forget()
    assert sizes.choose(49, "plain") == 56
    sizes.note(56, "plain")
    assert sizes.choose(41, "plain") == 56


def test_prompts_take_graphs_of_twice_their_tokens_less_often() -> None:
    sizes = sizes_of_pieces(512)
    assert sizes.choose(513 - 1, "alone") == 512 and sizes.choose(100, "alone") == 112
    sizes.note(128, "alone")
    assert [sizes.choose(65, "alone") for _ in range(9)] == [*[128] * 8, 80]
    assert sizes.choose(48, "alone") == 48, "128 is more than twice as large"


def test_full_steps_of_small_models_are_graphs() -> None:
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
