"""Pooled hidden states of prompts as in transformers, however the prompt is cut into steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadParams
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.execution.runner import ModelRunner
from engine.serving.engine import Engine
from engine.serving.recordings.replay import replay
from tests.cases import soak
from tests.examples import examples
from tests.models.families import reference
from tests.outputs import Output
from tests.runner.company import Company, companies
from tests.runner.device.test_no_memory import limit_memory
from tests.runner.graphs.plain_stage import staged
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import FAMILIES, GREEDY, alone, ask, drain, engine_on, turn

PROMPT = [1, *range(40, 87)]  # 48 tokens: three full blocks
LAST = SamplingParams(temperature=0.0, max_tokens=0, pooling="last")
MEAN = replace(LAST, pooling="mean")
Checkpoint = Callable[[str], tuple[Path, Any]]


@dataclass
class PooledOutput(Output):
    """A sink that also records the prompt's vector."""

    pooled: list[bytes] = field(default_factory=list)

    def __call__(self, delta: Delta) -> None:
        self.pooled += [delta.pooled] if delta.pooled else []
        super().__call__(delta)

    @property
    def vector(self) -> np.ndarray:
        [pooled] = self.pooled
        return np.frombuffer(pooled, "<f4")


def embed(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> tuple[int, PooledOutput]:
    output = PooledOutput()
    return engine.submit(prompt, params, output), output


def assert_as_in_transformers(model: Any, prompt: Sequence[int], found: PooledOutput, pooling: str) -> None:
    with torch.inference_mode():
        decoder = getattr(model, "model", model.base_model)
        states = decoder(torch.tensor([prompt])).last_hidden_state[0]
    expected = states[-1] if pooling == "last" else states.mean(0)
    torch.testing.assert_close(torch.from_numpy(found.vector.copy()), expected, atol=1e-4, rtol=0)
    assert found.reply == ([], "", Finish.LENGTH)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_vector_is_the_hidden_state_of_transformers(checkpoint: Checkpoint, family: str) -> None:
    folder, theirs = checkpoint(family)
    engine = engine_on(folder)
    found = [embed(engine, PROMPT, params)[1] for params in (LAST, MEAN)]
    one_token = embed(engine, [7], MEAN)[1]
    drain(engine)
    for output, pooling in zip(found, ("last", "mean"), strict=True):
        assert_as_in_transformers(theirs, PROMPT, output, pooling)
    assert_as_in_transformers(theirs, [7], one_token, "last")


def test_a_vector_of_a_step_that_is_replayed(checkpoint: Checkpoint) -> None:
    folder, theirs = checkpoint("llama")
    engine = engine_on(folder, max_step_tokens=24)
    stage, asked = staged(engine), [(PROMPT, LAST), (PROMPT[:20], MEAN), (PROMPT[:1], MEAN)]
    found = [embed(engine, prompt, params)[1] for prompt, params in asked]
    drain(engine)
    assert sum(stage.pieces) >= len(PROMPT) + 21 and not stage.sizes
    for (prompt, params), output in zip(asked, found, strict=True):
        assert_as_in_transformers(theirs, prompt, output, params.pooling)


REPLY = replace(GREEDY, max_tokens=4)


@examples(8)
@given(companies(st.sampled_from([LAST, MEAN, MEAN, REPLY])))
def test_steps_and_company_do_not_change_it(checkpoint: Checkpoint, company: Company) -> None:
    folder, theirs = checkpoint("llama")
    for prompt, params, output in zip(
        company.prompts, company.params, company.run(folder, embed), strict=True
    ):
        if params is REPLY:
            assert len(output.tokens) == 4 and not output.pooled
        else:
            assert_as_in_transformers(theirs, prompt, output, params.pooling)


def test_a_chunk_that_was_in_flight_at_a_preemption_counts_once(checkpoint: Checkpoint) -> None:
    folder, theirs = checkpoint("llama")
    engine = engine_on(folder, depth=1, max_step_tokens=16, prefix_cache=False)
    id, output = embed(engine, PROMPT, MEAN)
    turn(engine)
    turn(engine)  # the first chunk is committed, the second is in flight
    engine.scheduler.rules.step_tokens = 40
    engine.preempt(id)
    drain(engine)
    assert_as_in_transformers(theirs, PROMPT, output, "mean")


def test_a_mean_computes_all_positions_and_the_last_token_uses_the_cache(checkpoint: Checkpoint) -> None:
    folder, theirs = checkpoint("llama")
    engine = engine_on(folder)
    ask(engine, PROMPT)
    drain(engine)
    for params, cached in ((MEAN, 0), (LAST, 32)):
        _, output = embed(engine, PROMPT, params)
        turn(engine)
        assert engine.scheduler.cached_tokens == cached
        drain(engine)
        assert_as_in_transformers(theirs, PROMPT, output, params.pooling)


def test_a_preempted_mean_computes_the_rest(llama: Path) -> None:
    engine = engine_on(llama, max_step_tokens=16)
    id, output = embed(engine, PROMPT, MEAN)
    turn(engine)
    turn(engine)
    engine.preempt(id)
    turn(engine)
    turn(engine)
    assert output.finish is Finish.LENGTH, "32 tokens came from the cache, so one step of 16 was enough"
    drain(engine)


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_a_step_without_memory_is_computed_again(checkpoint: Checkpoint, depth: int) -> None:
    folder, theirs = checkpoint("llama")
    engine = limit_memory(engine_on(folder, depth=depth), lambda ids: len(ids) > 11)
    found = [embed(engine, PROMPT[:length], MEAN)[1] for length in (20, 37, 48)]
    drain(engine)
    for length, output in zip((20, 37, 48), found, strict=True):
        assert_as_in_transformers(theirs, PROMPT[:length], output, "mean")


def test_other_requests_cause_no_extra_work(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a step without spans sums none")

    monkeypatch.setattr("engine.execution.runner.sum_spans", never)
    engine = engine_on(llama)
    _, output = ask(engine, PROMPT)
    drain(engine)
    assert output.reply == alone(llama, PROMPT).reply


def test_a_recording_of_it_is_replayed(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, path = engine_on(llama, max_step_tokens=20), tmp_path / "steps"
    origin = engine.origin
    engine.record(path)
    outputs = [embed(engine, PROMPT, params)[1] for params in (MEAN, LAST)]
    drain(engine)
    engine.stop_recording()
    fresh = engine_on(llama, max_step_tokens=20)
    assert isinstance(fresh.runner, ModelRunner)
    collect, sums = fresh.runner.collect, list[tuple[int, np.ndarray]]()

    def collected(handle: Any) -> Any:
        result = collect(handle)
        sums.extend(result.sums.items())
        return result

    monkeypatch.setattr(fresh.runner, "collect", collected)
    steps = list(replay(path, fresh.runner, origin))
    assert steps and all(each.then == each.now for each in steps)
    for request, output in enumerate(outputs):
        total = sum(values for id, values in sums if id == request)
        assert np.array_equal(output.vector, total / (len(PROMPT) if request == 0 else 1))


def test_a_prompt_of_nan_fails(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(llama)
    assert isinstance(engine.runner, ModelRunner)
    forward = engine.runner.model.forward
    monkeypatch.setattr(engine.runner.model, "forward", lambda *args: forward(*args) * float("nan"))
    _, output = embed(engine, PROMPT, LAST)
    drain(engine)
    assert (output.finish, output.error) == (Finish.FAILED, "the model returned NaN for the prompt")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pooling": "max"}, "pooling: must be last or mean, or empty, not 'max'"),
        ({"max_tokens": 1}, "pooling: requires max_tokens to be 0"),
        ({"n": 2}, "pooling: cannot be combined with n"),
        ({"best_of": 2}, "pooling: cannot be combined with best_of"),
        ({"prompt_logprobs": 0}, "pooling: cannot be combined with prompt_logprobs"),
    ],
)
def test_what_cannot_be_combined_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadParams, match=problem):
        LAST.changed(**changes)


def test_a_running_request_keeps_its_pooling(llama: Path) -> None:
    engine = engine_on(llama)
    id, _ = embed(engine, PROMPT, MEAN)
    with pytest.raises(BadParams, match="pooling: cannot change"):
        engine.update(id, pooling="last")
    reply, _ = ask(engine, PROMPT)
    turn(engine)
    with pytest.raises(BadParams, match="pooling: is not available for a fork"):
        engine.fork(reply, Output(), LAST)
    drain(engine)


def test_a_bridged_model_has_them_too(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    theirs = reference("GPTNeoX", {"vocab_size": VOCAB}, tmp_path)
    engine = engine_on(tmp_path, max_step_tokens=20)
    assert isinstance(engine.runner, ModelRunner)
    assert type(engine.runner.model).__name__ == "BridgedModel"
    found = {params.pooling: embed(engine, PROMPT, params)[1] for params in (LAST, MEAN)}
    drain(engine)
    for pooling, output in found.items():
        assert_as_in_transformers(theirs, PROMPT, output, pooling)
