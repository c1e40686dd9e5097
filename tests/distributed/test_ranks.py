"""Everything that requests do gives the same on two ranks as on one, whose processes share nothing."""

import os
import signal
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import timeline
from engine.api.errors import EngineDead
from engine.api.events import Delta, Died, Transferred
from engine.api.params import SPECULATION, Grammar, SamplingParams
from engine.distributed.runner import RankedRunner
from engine.execution.changes import Recache
from engine.execution.protocol import StepKind
from engine.execution.runner import ModelRunner
from engine.host.thread import EngineThread
from engine.serving.engine import Engine
from engine.serving.recordings.replay import replay
from tests.distributed.conftest import CONFIG
from tests.distributed.threads import ranked
from tests.outputs import Output
from tests.runner.graphs.test_precompile import Stage
from tests.runner.replies.test_company import Workload, assert_nothing_changes, workloads
from tests.runner.rows.test_pooling import MEAN, embed
from tests.runner.rows.test_speculation import KINDS, LETTERS, always_draft, speculative
from tests.runner.small import GREEDY, alone, ask, close_to, drain, engine_on, run_to, turn
from tests.waiting import becomes

WARM = SamplingParams(temperature=0.8, max_tokens=10, ignore_eos=True)
PROMPT = [1, *range(40, 74)]  # longer than a step: it runs in chunks


@pytest.mark.soak  # the next test has every kind of request
@settings(max_examples=6, phases=[Phase.generate])
@given(
    work=workloads,
    kinds=st.lists(KINDS, min_size=5, max_size=5),
    others=st.lists(KINDS, min_size=5, max_size=5),
)
def test_random_workloads(
    two: Engine, drafted: Path, work: Workload, kinds: list[str], others: list[str]
) -> None:
    two.set_switch("overlap", work.depth == 1)
    two.set_switch("prefix_cache", work.prefix_cache)
    assert_nothing_changes(two, drafted, speculative(work, kinds, others))


def everything(engine: Engine, drafts: Sequence[str] = SPECULATION) -> tuple[list[Any], list[Transferred]]:
    """Requests of every kind: their replies, and the transfers of preempted ones."""
    moved: list[Transferred] = []
    stop = engine.bus.subscribe(lambda event: moved.append(event) if isinstance(event, Transferred) else None)
    outputs = [ask(engine, [*PROMPT, 80 + n], replace(WARM, seed=n, logprobs=3))[1] for n in range(3)]
    penalized = replace(WARM, seed=7, frequency_penalty=0.4, repetition_penalty=1.2, top_p=0.9, top_k=40)
    id, output = ask(engine, PROMPT, replace(penalized, prompt_logprobs=2))
    outputs.append(output)
    run_to(engine, output, 5)
    engine.update(id, temperature=0.3, frequency_penalty=1.0, logit_bias={41: 3.0})
    turn(engine)
    engine.fork(id, forked := Output(), replace(WARM, seed=8, presence_penalty=0.5))
    outputs.append(forked)
    turn(engine)
    engine.preempt(id)
    drain(engine)
    for kind in drafts:
        params = WARM.changed(speculate=kind, logit_bias=LETTERS, presence_penalty=0.2, max_tokens=10)
        outputs += [ask(engine, [*PROMPT[:9], 90 + n], replace(params, seed=n))[1] for n in range(2)]
        drain(engine)
    outputs.append(ask(engine, PROMPT, replace(WARM, seed=9, grammar=Grammar("regex", "[ab]+")))[1])
    several: list[Delta] = []
    engine.submit(PROMPT[:12], GREEDY.changed(beams=3, n=2, max_tokens=8), several.append)
    drain(engine)
    engine.submit(PROMPT[:20], WARM.changed(n=3, seed=1), several.append)
    drain(engine)
    stop()
    replies = [each.reply for each in outputs]
    return [*replies, [(each.choice, each.tokens, each.text, each.error) for each in several]], moved


def test_every_kind_of_request_and_a_recording_of_it(two: Engine, drafted: Path, tmp_path: Path) -> None:
    """One rank computes the same, and so do both from the recording alone."""
    two.set_switch("overlap", False)  # an update takes effect after the steps that are in flight
    two.set_switch("prefix_cache", True)
    two.scheduler.pool.forget_all()
    one = always_draft(engine_on(drafted, **CONFIG))
    two.record(tmp_path / "recording")
    found, moved = everything(two)
    two.stop_recording()
    expected, _ = everything(one)
    assert found == expected
    assert {each.load for each in moved} == {False, True}, "no preempted blocks were stored and loaded"
    assert not [each.error for each in moved if each.error]
    for runner, origin in ((one.runner, one.origin), (two.runner, two.origin)):
        runner.apply(Recache("none"))  # empties the cache and the tiers on every rank
        steps = list(replay(tmp_path / "recording", runner, origin))
        assert steps and all(each.now == each.then for each in steps)


def test_the_logprobs_are_those_of_one_rank(two: Engine, drafted: Path) -> None:
    params = GREEDY.changed(logprobs=5, temperature=0.7, seed=4)
    _, output = ask(two, PROMPT, params)
    drain(two)
    expected = alone(drafted, PROMPT, params)
    assert output.tokens == expected.tokens and close_to(output.logprobs, expected.logprobs)


def test_embeddings_are_those_of_one_rank(two: Engine, drafted: Path) -> None:
    vectors = []
    for engine in (two, engine_on(drafted, **CONFIG)):
        _, output = embed(engine, PROMPT, MEAN)
        drain(engine)
        vectors.append(output.vector)
    np.testing.assert_allclose(*vectors, atol=1e-4)


def test_the_schemes_of_weights_and_cache_change_at_run_time(two: Engine, drafted: Path) -> None:
    """The cache rounds each head separately, as on one rank, so the replies are the same."""
    one = engine_on(drafted, **CONFIG)
    replies = []
    for engine in (one, two):
        engine.set_kv_scheme("int8")
        outputs = [ask(engine, PROMPT)[1]]
        drain(engine)
        engine.set_kv_scheme("none")
        for scheme in ("int8", "bf16", "none"):
            _, output = ask(engine, PROMPT)
            turn(engine)
            engine.set_quantization(scheme)
            drain(engine)
            assert engine.runner.weights_scheme == scheme and output.finish and not output.error
        outputs.append(ask(engine, PROMPT)[1])
        drain(engine)
        replies.append([each.reply for each in outputs])
    assert replies[0] == replies[1]


def test_a_snapshot_names_the_ranks(two: Engine) -> None:
    first, second = two.snapshot().ranks
    assert (first.rank, first.pid, first.device) == (0, os.getpid(), "cpu")
    assert (second.rank, second.device) == (1, "cpu") and second.pid != first.pid
    assert first.cache == second.cache == two.runner.memory()["cache"]


@pytest.mark.usefixtures("two")
def test_what_each_rank_did_is_in_the_engines_timeline() -> None:
    found = {each.what for each in timeline.every() if each.thread == "rank 1: MainThread"}
    assert {"torch", "the engine's modules", "the weights"} <= found


def test_each_rank_holds_half_of_the_model(two: Engine, drafted: Path) -> None:
    assert isinstance(two.runner, RankedRunner)
    whole, half = engine_on(drafted, **CONFIG).runner.store, two.runner.own.store
    assert half.nbytes * 2 == whole.nbytes and half.host_nbytes * 2 == whole.host_nbytes
    assert [len(each.keys) for each in half.layers] == [len(each.keys) for each in whole.layers]


def test_a_rank_that_dies_ends_an_idle_engine(llama: Path) -> None:
    died, engine = list[Died](), engine_on(llama, tp=2)
    engine.bus.subscribe(lambda event: died.append(event) if isinstance(event, Died) else None)
    host = EngineThread(engine)
    try:
        os.kill(engine.snapshot().ranks[1].pid, signal.SIGKILL)
        assert becomes(lambda: died)
        assert "rank 1 was killed by SIGKILL" in died[0].error
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            engine.submit(PROMPT, GREEDY, Output())
    finally:
        host.close()


def test_all_ranks_capture_the_same_graphs(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, captured = [StepKind(4, long=True), StepKind(8, filtered=True)], list[list[StepKind]]()
    monkeypatch.setattr(ModelRunner, "capture", lambda runner, kinds: captured.append([*kinds]))
    with ranked(llama) as engine:
        engine.runner.capture(kinds)
        assert becomes(lambda: len(captured) == 2)
    assert captured == [kinds] * 2


class Compiling(Stage):
    """Only notes what it is to compile, and when that is done."""

    def __init__(self, runner: ModelRunner, noted: list[str]) -> None:
        super().__init__(runner)
        self.noted = noted

    def start_compiling(self, steps: Mapping[Hashable, Callable[[], object]]) -> Any:
        self.noted.append("starts to compile")
        return self

    def wait(self, seconds: float | None = None) -> bool:
        self.noted.append("compiled")
        return True


def test_kernels_are_compiled_before_the_first_exchange_of_a_step(llama: Path) -> None:
    """A rank that compiled between two exchanges would let the kernels of the others wait."""
    noted = list[str]()
    with ranked(llama) as engine:
        runner, sums = engine.runner.own, engine.ranks.sums
        add = sums.sum

        def noting(term: Tensor) -> Tensor:
            noted.append("sum")
            return add(term)

        sums.sum = noting
        runner.use_stages(Compiling(runner, noted), None)
        _, output = ask(engine, PROMPT[:7])
        drain(engine)
        assert output.reply == alone(llama, PROMPT[:7]).reply
        layers, shot = len(runner.model.config.layers), engine.snapshot()
    assert [each for each, _ in groupby(noted)] == 2 * ["starts to compile", "compiled", "sum"]
    assert noted.count("sum") == (2 * layers + 1) * GREEDY.max_tokens
    assert shot.joining > 0 and all(each.traffic > 0 for each in shot.ranks)


def test_the_bytes_of_a_step_are_counted(llama: Path) -> None:
    """Each sum takes a row for a token, in float32, and the logits a share of the vocabulary."""
    with ranked(llama, prefix_cache=False) as engine:
        config, sums, sent = engine.runner.own.model.config, engine.ranks.sums, list[int]()
        for count in (1, 2, 7):
            before = sums.exchanged.sent
            ask(engine, PROMPT[:5], GREEDY.changed(max_tokens=count))
            drain(engine)
            sent.append(sums.exchanged.sent - before)
    of_token = 4 * (2 * len(config.layers) + 1) * config.hidden
    of_logits = 4 * -(-config.vocab // 2)
    assert sent == [(4 + count) * of_token + count * of_logits for count in (1, 2, 7)]
