"""Stages of a pipeline compute what one process computes, to the bit: cutting layers changes no sum."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine import assembly
from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.events import Delta
from engine.api.params import SPECULATION
from engine.distributed import setup
from engine.distributed.pipelined import PipelinedRunner
from engine.distributed.team import Team
from engine.execution.changes import Recache
from engine.execution.runner import ModelRunner
from engine.execution.weights import weight_bytes
from engine.models.loader import Checkpoint
from engine.serving.engine import Engine
from engine.serving.recordings.replay import replay
from tests.cases import soak
from tests.distributed.conftest import CONFIG
from tests.distributed.test_ranks import PROMPT, WARM, everything
from tests.distributed.threads import ranked
from tests.models.families import EXPERTS, LINEAR, reference
from tests.runner.graphs.plain_stage import PlainStage
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.replies.test_company import Workload, assert_nothing_changes, workloads
from tests.runner.rows.test_speculation import KINDS, always_draft, speculative
from tests.runner.small import GREEDY, alone, ask, drain, engine_on, make, turn, turn_until

DRAFTS = tuple(kind for kind in SPECULATION if kind != "exit")  # its layers and the head are on two stages
SOME = st.lists(KINDS.filter(lambda kind: kind != "exit"), min_size=5, max_size=5)


@pytest.fixture(scope="module")
def staged(drafted: Path) -> Iterator[Engine]:
    """An engine of two stages, each a process, with a draft model and hardly any room."""
    engine = always_draft(engine_on(drafted, pp=2, **CONFIG | {"depth": 1}))
    yield engine
    engine.close()


@pytest.mark.soak
@settings(max_examples=6, phases=[Phase.generate])
@given(work=workloads, kinds=SOME, others=SOME)
def test_random_workloads(
    staged: Engine, drafted: Path, work: Workload, kinds: list[str], others: list[str]
) -> None:
    staged.set_switch("overlap", work.depth == 1)
    staged.set_switch("prefix_cache", work.prefix_cache)
    assert_nothing_changes(staged, drafted, speculative(work, kinds, others))


@pytest.mark.soak
def test_every_kind_of_request_and_a_recording_of_it(staged: Engine, drafted: Path, tmp_path: Path) -> None:
    """One process computes the same, and both do it again from the recording alone."""
    staged.set_switch("overlap", False)  # an update takes effect after the steps that are in flight
    staged.set_switch("prefix_cache", True)
    staged.scheduler.pool.forget_all()
    one = always_draft(engine_on(drafted, **CONFIG))
    staged.record(tmp_path / "recording")
    found, moved = everything(staged, DRAFTS)
    staged.stop_recording()
    expected, _ = everything(one, DRAFTS)
    assert found == expected
    assert {each.load for each in moved} == {False, True}, "no preempted blocks were stored and loaded"
    assert not [each.error for each in moved if each.error]
    for runner, origin in ((one.runner, one.origin), (staged.runner, staged.origin)):
        runner.apply(Recache("none"))  # empties the cache and the tiers on every rank
        steps = list(replay(tmp_path / "recording", runner, origin))
        assert steps and all(each.now == each.then for each in steps)


def test_every_stage_has_a_step(staged: Engine, drafted: Path) -> None:
    """Each step has its share of the requests, and none of those in the step that is still in flight."""
    staged.set_switch("overlap", True)
    outputs = [ask(staged, [5 + n, 6], GREEDY)[1] for n in range(4)]
    turn_until(staged, lambda: all(each.tokens for each in outputs))
    flights = staged._flights
    seen = []
    for _ in range(12):
        turn(staged)
        (flight,) = flights
        seen.append({row.request for row in flight.step.rows})
    assert all(len(each) == 2 for each in seen)
    assert all(not before & after for before, after in pairwise(seen))
    drain(staged)
    for n, each in enumerate(outputs):
        assert each.reply == alone(drafted, [5 + n, 6]).reply


def test_the_cache_scheme_changes_and_the_weights_keep_theirs(staged: Engine, drafted: Path) -> None:
    one = engine_on(drafted, **CONFIG)
    replies = []
    for engine in (one, staged):
        engine.set_kv_scheme("int8")
        _, output = ask(engine, PROMPT)
        drain(engine)
        engine.set_kv_scheme("none")
        replies.append(output.reply)
    assert replies[0] == replies[1]
    with pytest.raises(BadInput, match=r"weights of a pipeline \(pp\) keep the scheme"):
        staged.set_quantization("int8")
    assert {each.why_not == "" for each in staged.snapshot().schemes if each.name != "none"} == {False}
    with pytest.raises(EngineError, match="speculate"):
        ask(staged, PROMPT, GREEDY.changed(speculate="exit"))


def test_a_snapshot_names_the_stages_and_their_bubbles(staged: Engine) -> None:
    _, output = ask(staged, PROMPT)
    drain(staged)
    last, first = staged.snapshot().ranks
    assert output.finish and (last.rank, last.stage, last.pid) == (0, 1, os.getpid())
    assert (first.rank, first.stage) == (1, 0) and first.pid != last.pid
    # Each has worked. How waiting is counted is tested without a clock: on busy cores, a share may be zero.
    assert 0 <= first.bubble < 1 and 0 <= last.bubble < 1
    assert first.cache == 2 * last.cache, "the first stage has two of the three layers"
    assert first.traffic > 0 and last.traffic == 0, "tokens are sent with the steps"


@pytest.mark.soak  # as one that hangs, which is killed
def test_a_stage_that_dies_ends_the_requests(llama: Path) -> None:
    engine = engine_on(llama, pp=2, depth=1)
    try:
        ask(engine, PROMPT, GREEDY.changed(max_tokens=50))
        turn(engine)
        os.kill(engine.snapshot().ranks[1].pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="rank 1 was killed by SIGKILL"):
            drain(engine)
    finally:
        engine.close()


def test_a_stage_that_hangs_ends_the_requests(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage waits for it, until it is killed."""
    files = len(os.listdir("/proc/self/fd"))
    engine = engine_on(llama, pp=2, depth=1)
    monkeypatch.setattr(Team, "silence", 1.0)  # not while it starts, when a process may be busy for longer
    try:
        os.kill(engine.snapshot().ranks[1].pid, signal.SIGSTOP)
        ask(engine, PROMPT)
        with pytest.raises(EngineDead, match="rank 1 did not respond for 1 seconds and was killed"):
            drain(engine)
    finally:
        engine.close()
    del engine
    assert len(os.listdir("/proc/self/fd")) <= files + 2


FEW: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 5, "logprobs": 2},
    {"n": 2, "seed": 1},
    {"beams": 2, "temperature": 0.0},
]


def replies(engine: Engine) -> list[Any]:
    """What requests of several kinds get, in the order of their ids."""
    found: list[list[Delta]] = [[] for _ in FEW]
    for n, (more, deltas) in enumerate(zip(FEW, found, strict=True)):
        engine.submit([*PROMPT[: 9 * n + 2], n + 7], WARM.changed(**more), deltas.append)
    drain(engine)
    joined = [sorted((each.choice, at, each) for at, each in enumerate(deltas)) for deltas in found]
    return [[(choice, each.tokens, each.text, each.logprobs) for choice, _, each in one] for one in joined]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("gemma3", {"pp": 3, "dtype": "bfloat16"}),
        ("qwen3", {"pp": 2, "kv_scheme": "int4"}),
        *soak(
            ("qwen3", {"pp": 2, "quantization": "int8", "depth": 0}),  # its last bits depend on the batch
            ("deepseek_v3", {"pp": 2}),
            ("gpt_oss", {"pp": 3}),
            ("cohere2", {"pp": 3}),
            ("bloom", {"pp": 3}),
            ("llama", {"pp": 3}),
        ),
    ],
)
def test_models_of_other_families(
    checkpoint: Callable[[str], tuple[Path, Any]], family: str, config: dict[str, Any]
) -> None:
    folder, _ = checkpoint(family)
    one = replies(engine_on(folder, max_step_tokens=20, **config | {"pp": 1}))
    with ranked(folder, tp=1, max_step_tokens=20, **{"depth": 1} | config) as engine:
        assert replies(engine) == one


def test_a_recurrent_state_in_every_stage(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    reference("Qwen3Next", EXPERTS | LINEAR | layers | {"num_experts": 4, "vocab_size": VOCAB}, tmp_path)
    with ranked(tmp_path, tp=1, pp=2, depth=1, max_step_tokens=20) as engine:
        assert replies(engine) == replies(engine_on(tmp_path, max_step_tokens=20))


@pytest.mark.soak  # in each run groups/test_grouped.py has four ranks, too
def test_stages_of_two_ranks_are_two_ranks(llama: Path) -> None:
    """Four ranks: partial sums are added inside of each stage, as without stages."""
    with ranked(llama, tp=2, max_step_tokens=20) as engine:
        two = replies(engine)
    with ranked(llama, tp=2, pp=2, depth=1, max_step_tokens=20) as engine:
        assert replies(engine) == two
        assert [each.stage for each in engine.snapshot().ranks] == [1, 1, 0, 0]


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), *soak((2, 1))])
def test_steps_through_staging_buffers(llama: Path, tp: int, pp: int) -> None:
    """As CUDA graphs run them: what the first stage computes is read at a fixed address.

    All ranks choose the same graphs, also of pieces of a prompt beside replies: their exchanges must match.
    """
    stages: list[PlainStage] = []
    use_stages = ModelRunner.use_stages

    def use_plain(runner: ModelRunner, *_: None) -> None:
        stages.append(PlainStage(runner))
        use_stages(runner, None, stages[-1])

    with ranked(llama, tp=tp, depth=1) if tp > 1 else nullcontext(engine_on(llama)) as engine:
        expected = replies(engine), beside(engine)
    plain = patch.object(ModelRunner, "use_stages", use_plain)
    with plain, ranked(llama, tp=tp, pp=pp, depth=1) as engine:
        found = replies(engine)
        engine.scheduler.pace.limit(1.5)
        assert (found, beside(engine)) == expected
    first, last = sorted(stages, key=lambda each: len(each.flags))
    assert bool(first.flags) is (tp > 1) and last.flags, "only the last stage samples"
    assert first.sizes == last.sizes and {1, 4} <= {*first.sizes}
    assert first.pieces == last.pieces and {32, 80} <= {*first.pieces}, "with and without a limit"


def beside(engine: Engine) -> list[list[int]]:
    """Replies beside which two prompts arrive."""
    outputs = [ask(engine, [60 + n, 7], GREEDY)[1] for n in range(3)]
    for prompt in ([*range(60, 80)], [*range(20, 80)]):
        turn_until(engine, lambda: all(each.tokens for each in outputs))
        outputs.append(ask(engine, prompt)[1])
    drain(engine)
    return [each.tokens for each in outputs]


def test_each_stage_reads_its_own_layers(llama: Path) -> None:
    read = dict[int, set[str]]()
    weights = Checkpoint.weights

    def reading(checkpoint: Checkpoint, slots: Any) -> Any:
        read.setdefault(id(checkpoint), set()).update(slots)
        return weights(checkpoint, slots)

    with patch.object(Checkpoint, "weights", reading), ranked(llama, tp=1, pp=2):
        one, other = read.values()
    assert one & other == {"model.norm.weight", "model.embed_tokens.weight"}, "the head is tied"
    layers = [{name.split(".")[2] for name in each if ".layers." in name} for each in (one, other)]
    assert sorted(layers, key=len) == [{"2"}, {"0", "1"}]


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 3), (2, 1)])
def test_each_rank_reports_its_own_weights(llama: Path, tp: int, pp: int) -> None:
    held, load = list[int](), setup.load_share

    def loading(*given: Any, **how: Any) -> Any:
        held.append(weight_bytes((loaded := load(*given, **how)).model))
        return loaded

    with patch.object(setup, "load_share", loading), ranked(llama, tp=tp, pp=pp) as engine:
        shot = engine.snapshot()
    own, *others = (each.weights for each in shot.ranks)
    assert own == shot.memory["weights"] and sorted(others) == sorted(held)
    assert len({own, *others}) == pp, "stages differ in their layers, and those between have no embedding"


def test_a_step_that_fails_in_a_stage_fails_its_requests(llama: Path) -> None:
    """Later steps run in all stages: a failed one has passed them with zeros."""
    compute, broken = ModelRunner.compute, {0: 3, 1: 5}  # by stage: the steps that fail

    def failing(runner: ModelRunner, step: Any, began: float) -> Any:
        if step.number == broken[int(runner._ends.samples)]:
            raise RuntimeError("it is broken")
        return compute(runner, step, began)

    with patch.object(ModelRunner, "compute", failing), ranked(llama, tp=1, pp=2, depth=1) as engine:
        assert isinstance(engine.runner, PipelinedRunner)
        outputs = [ask(engine, [n + 3, 4])[1] for n in range(2)]
        drain(engine)
        assert all("RuntimeError: it is broken" in each.error for each in outputs)
        assert ["rank 1: " in each.error for each in outputs].count(True) == 1
        _, output = ask(engine, PROMPT)
        drain(engine)
    assert output.reply == alone(llama, PROMPT).reply


@pytest.mark.parametrize(
    ("family", "config", "problem"),
    [
        ("llama", {"pp": 4}, "the model has 3 layers, so it can have at most 3 stages"),
        ("qwen3_next", {"pp": 2}, "layers with a recurrent state"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, config: dict[str, Any], problem: str
) -> None:
    make(family, tmp_path)
    monkeypatch.setattr(assembly, "Team", None)  # before any process starts
    with pytest.raises(BadInput, match=problem):
        engine_on(tmp_path, **config)
