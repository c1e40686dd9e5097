"""Log-probabilities of prompt tokens as in transformers, however the prompt is cut into steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.api.errors import BadParams, RequestTooLong
from engine.api.events import Delta, Event, Finished, FirstToken, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.execution import prompt_logprobs
from engine.execution.prompt_logprobs import read_prompts
from engine.execution.runner import ModelRunner
from engine.scheduling.step import PromptTargets
from engine.serving.engine import Engine
from engine.serving.recordings.replay import replay
from tests.cases import soak
from tests.examples import examples
from tests.outputs import Output, Outputs
from tests.runner.company import Company, companies
from tests.runner.device.test_no_memory import limit_memory
from tests.runner.small import FAMILIES, GREEDY, alone, ask, drain, engine_on, turn

PROMPT = [1, *range(40, 87)]  # 48 tokens: three full blocks
ONLY_PROMPT = replace(GREEDY, max_tokens=0, prompt_logprobs=3)
Checkpoint = Callable[[str], tuple[Path, Any]]


@dataclass
class PromptOutput(Output):
    """A sink that also records the prompt's log-probabilities."""

    prompt: list[TokenLogprob] = field(default_factory=list)

    def __call__(self, delta: Delta) -> None:
        assert not (delta.prompt_logprobs and self.tokens), "the prompt comes after tokens of the reply"
        self.prompt += delta.prompt_logprobs
        super().__call__(delta)


def score(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> tuple[int, PromptOutput]:
    output = PromptOutput()
    return engine.submit(prompt, params, output), output


def assert_as_in_transformers(
    model: Any, prompt: Sequence[int], found: Sequence[TokenLogprob], most: int
) -> None:
    with torch.inference_mode():
        values = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    assert [each.token for each in found] == list(prompt[1:])
    chosen = values.gather(1, torch.tensor(prompt[1:])[:, None])
    torch.testing.assert_close(
        torch.tensor([each.logprob for each in found]), chosen[:, 0], atol=1e-4, rtol=0
    )
    assert all(len(each.top) == most for each in found)
    top = torch.tensor([[value for _, value in each.top] for each in found], dtype=torch.float32)
    torch.testing.assert_close(top, values.topk(most).values, atol=1e-4, rtol=0)
    ids = torch.tensor([[token for token, _ in each.top] for each in found], dtype=torch.int64)
    torch.testing.assert_close(values.gather(1, ids.reshape(len(found), most)), top, atol=1e-4, rtol=0)
    for each, row in zip(found, values, strict=True):
        above = int((row > each.logprob + 1e-4).sum()), int((row > each.logprob - 1e-4).sum())
        assert above[0] < each.rank <= max(above[1], above[0] + 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_has_the_log_probabilities_of_transformers(checkpoint: Checkpoint, family: str) -> None:
    folder, theirs = checkpoint(family)
    engine = engine_on(folder)
    _, output = score(engine, PROMPT, replace(ONLY_PROMPT, prompt_logprobs=5))
    drain(engine)
    assert_as_in_transformers(theirs, PROMPT, output.prompt, 5)
    assert output.reply == ([], "", Finish.LENGTH)


def test_the_reply_after_it_is_the_same(checkpoint: Checkpoint) -> None:
    folder, theirs = checkpoint("llama")
    engine = engine_on(folder)
    _, output = score(engine, PROMPT, replace(GREEDY, prompt_logprobs=0, logprobs=2))
    drain(engine)
    assert output.reply == alone(folder, PROMPT).reply
    assert len(output.logprobs) == len(output.tokens)
    assert_as_in_transformers(theirs, PROMPT, output.prompt, 0)


def prompt_params(replies: int, most: int) -> SamplingParams:
    return replace(GREEDY, max_tokens=replies, prompt_logprobs=most)


@examples(10)
@given(companies(st.builds(prompt_params, st.sampled_from([0, 0, 1, 5]), st.integers(0, 3))))
def test_steps_and_company_do_not_change_it(checkpoint: Checkpoint, company: Company) -> None:
    folder, theirs = checkpoint("llama")
    for prompt, params, output in zip(
        company.prompts, company.params, company.run(folder, score), strict=True
    ):
        assert_as_in_transformers(theirs, prompt, output.prompt, params.prompt_logprobs)
        assert len(output.tokens) == params.max_tokens


def test_cached_blocks_are_computed_again_only_where_needed(llama: Path) -> None:
    engine = engine_on(llama, max_step_tokens=16)
    ask(engine, PROMPT)
    drain(engine)
    id, output = score(engine, PROMPT, ONLY_PROMPT)
    turn(engine)
    assert engine.scheduler.requests[id].cached_tokens == 0
    turn(engine)
    assert len(output.prompt) == 32
    engine.preempt(id)
    turn(engine)
    turn(engine)
    assert output.finish is Finish.LENGTH, "32 tokens came from the cache, so one step of 16 was enough"
    drain(engine)
    assert [each.token for each in output.prompt] == PROMPT[1:]


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_a_step_without_memory_is_computed_again(checkpoint: Checkpoint, depth: int) -> None:
    folder, theirs = checkpoint("llama")
    engine = limit_memory(engine_on(folder, depth=depth), lambda ids: len(ids) > 11)
    found = [score(engine, PROMPT[:length], ONLY_PROMPT)[1] for length in (20, 37, 48)]
    drain(engine)
    for length, output in zip((20, 37, 48), found, strict=True):
        assert_as_in_transformers(theirs, PROMPT[:length], output.prompt, 3)


def test_samples_share_one_reading_of_the_prompt(llama: Path) -> None:
    for more in ({"n": 3}, {"n": 2, "best_of": 3}):
        engine, outputs = engine_on(llama), Outputs()
        engine.submit(PROMPT, replace(GREEDY, temperature=1.0, prompt_logprobs=1, **more), outputs)
        drain(engine)
        found = [(each.choice, one.token) for each in outputs.deltas for one in each.prompt_logprobs]
        assert found == [(0, token) for token in PROMPT[1:]]
        assert len(outputs.choices) == more["n"]


def test_without_a_reply_every_choice_ends(llama: Path) -> None:
    engine, outputs = engine_on(llama), Outputs()
    engine.submit(PROMPT, replace(GREEDY, max_tokens=0, n=3), outputs)
    drain(engine)
    assert [one.reply for one in outputs.choices.values()] == [([], "", Finish.LENGTH)] * 3


@pytest.mark.parametrize("n", [1, 2])
def test_without_a_reply_no_token_is_reported(llama: Path, n: int) -> None:
    engine = engine_on(llama)
    seen: list[Event] = []
    engine.bus.subscribe(seen.append)
    engine.submit(PROMPT, replace(GREEDY, max_tokens=0, n=n), Outputs())
    drain(engine)
    assert [each.tokens for each in seen if isinstance(each, Finished)] == [0] * n
    assert not any(isinstance(each, FirstToken) for each in seen)
    assert (engine.snapshot().ttft.count, engine.snapshot().itl.count) == (0, 0)


def test_the_head_reads_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_logprobs, "SLICE", 7)
    sizes: list[int] = []
    hidden = torch.randn(60, 12)
    tokens = tuple(range(11)) * 3

    def logits(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows

    rows = [(4, 2, PromptTargets(1, tokens, 2)), (9, 40, PromptTargets(5, (3, 4), 0))]
    found = read_prompts(logits, hidden, rows).by_request()
    assert max(sizes) == 7 and sum(sizes) == 35
    expected = hidden[2:35].log_softmax(-1)[range(33), list(tokens)]
    assert [each.logprob for each in found[4]] == pytest.approx(expected.tolist(), abs=1e-6)
    assert all(len(each.top) == 2 for each in found[4]) and all(each.top == () for each in found[9])


def test_other_requests_cause_no_extra_work(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a step without targets reads none")

    monkeypatch.setattr("engine.execution.runner.read_prompts", never)
    monkeypatch.setattr("engine.execution.runner.target_rows", never)
    engine = engine_on(llama)
    _, output = ask(engine, PROMPT)
    drain(engine)
    assert output.reply == alone(llama, PROMPT).reply


def test_a_recording_of_it_is_replayed(llama: Path, tmp_path: Path) -> None:
    engine, path = engine_on(llama, max_step_tokens=20), tmp_path / "steps"
    origin = engine.origin
    engine.record(path)
    score(engine, PROMPT, replace(GREEDY, prompt_logprobs=2))
    drain(engine)
    engine.stop_recording()
    fresh = engine_on(llama, max_step_tokens=20)
    assert isinstance(fresh.runner, ModelRunner)
    steps = list(replay(path, fresh.runner, origin))
    assert steps and all(each.then == each.now for each in steps)


def test_a_prompt_of_nan_fails(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(llama)
    assert isinstance(engine.runner, ModelRunner)
    whole = engine.runner.model.logits
    monkeypatch.setattr(engine.runner.model, "logits", lambda hidden: whole(hidden) * float("nan"))
    _, output = score(engine, PROMPT, ONLY_PROMPT)
    drain(engine)
    assert (output.finish, output.error) == (Finish.FAILED, "the model returned NaN for the prompt")


def test_what_cannot_be_asked_is_refused_by_name(llama: Path) -> None:
    engine = engine_on(llama)
    id, _ = score(engine, PROMPT, replace(GREEDY, prompt_logprobs=1))
    turn(engine)
    with pytest.raises(BadParams, match="prompt_logprobs: cannot change"):
        engine.update(id, prompt_logprobs=None)
    with pytest.raises(BadParams, match="max_tokens: cannot change from or to 0"):
        engine.update(id, max_tokens=0)
    with pytest.raises(BadParams, match="prompt_logprobs: is not available for a fork"):
        engine.fork(id, Output(), replace(GREEDY, prompt_logprobs=1))
    fork = Output()
    engine.fork(id, fork)
    with pytest.raises(RequestTooLong):
        engine.submit(PROMPT, ONLY_PROMPT, Output(), reply_prefix=[50])
    drain(engine)
    assert fork.tokens and fork.finish is Finish.LENGTH
