"""A draft model's cache has the model's blocks, in the same memory: both fit, under every scheme."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine import cache_plan
from engine.api.cache_spec import KV_SCHEMES, KvSchemeName
from engine.api.config import EngineConfig
from engine.execution import budget
from engine.execution.changes import Recache
from engine.execution.draft import drafting
from engine.execution.runner import ModelRunner
from engine.kv.store import KVStore
from engine.start import start
from tests.runner.small import GREEDY, ask, drain, engine_on

ROOM = 2_000_000


def small_room(drafted: Path, **config: Any) -> ModelRunner:
    """An engine that has as many blocks as fit into little memory."""
    with patch.object(cache_plan, "free_memory", lambda device: ROOM):
        runner = engine_on(drafted, blocks=None, **config).runner
    assert isinstance(runner, ModelRunner)
    return runner


def taken(runner: ModelRunner) -> int:
    return sum(each.nbytes for each in (runner.store, *runner._drafts.stores))


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_both_caches_fit(drafted: Path, scheme: KvSchemeName) -> None:
    runner = small_room(drafted)
    limit = ROOM * cache_plan.memory_share(torch.device("cpu"))
    if scheme != runner.store.scheme:
        runner.apply(Recache(scheme))
    assert limit / 2 < taken(runner) <= limit
    (view,) = (each for each in runner.kv_schemes() if each.name == scheme)
    assert view.blocks == len(runner.store.layers[0].keys)


def test_the_old_cache_is_freed_before_the_new_one(drafted: Path) -> None:
    """Both together would take more than the share of the memory that caches get."""
    begun: list[int] = []
    runner: ModelRunner | None = None

    class Counted(KVStore):
        def __init__(self, *given: Any, **named: Any) -> None:
            begun.append(0 if runner is None else sum(each.nbytes for each in runner._drafts.stores))
            super().__init__(*given, **named)

    with patch.object(drafting, "KVStore", Counted):
        engine = engine_on(drafted)
        assert begun == [0], "one cache at start"
        assert isinstance(engine.runner, ModelRunner)
        runner = engine.runner
        params = GREEDY.changed(speculate="draft")
        _, first = ask(engine, [1, 5, 6, 7], params)
        drain(engine)
        engine.runner.apply(Recache("none"))
        assert begun == [0, 0]
        _, again = ask(engine, [1, 5, 6, 7], params)
        drain(engine)
        assert again.tokens == first.tokens


def test_what_the_old_caches_took_is_given_back_before_others_are_made(drafted: Path) -> None:
    """Torch would keep it, as the new ones have other sizes, and a GPU would be full."""
    engine, freed = engine_on(drafted), []
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    usual = budget.give_back

    def give_back(device: torch.device) -> None:
        freed.append([len(each.layers) for each in (runner.store, *runner._drafts.stores)])
        usual(device)

    with patch.object(budget, "give_back", give_back):
        runner.apply(Recache("int8"))
    assert freed == [[0, 0]]


@pytest.mark.cuda
def test_the_built_in_model_leaves_a_gpu_some_memory() -> None:
    """Its draft model has a cache, too. Steps, and other programs, need what is left."""
    engine = start(EngineConfig(model="pocket", device="cuda"))
    free, total = torch.cuda.mem_get_info()
    assert free > total / 10
    params = GREEDY.changed(speculate="draft", max_tokens=8)
    _, output = ask(engine, [1, 5, 6, 7], params)
    drain(engine)
    assert len(output.tokens) == 8
    for scheme in KV_SCHEMES:
        engine.runner.apply(Recache(scheme))
        assert torch.cuda.mem_get_info()[0] > total / 10
    engine.close()
