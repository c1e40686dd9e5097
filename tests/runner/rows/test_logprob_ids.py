"""Log-probabilities of given tokens at each sampled position: the log-softmax of transformers' logits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.errors import BadParams
from engine.api.events import TokenLogprob
from engine.sampling.logprobs import read_logprobs
from tests.runner.letters import VOCAB
from tests.runner.small import GREEDY, alone, ask, close_to, drain, engine_on, turn

PROMPT = [1, *range(40, 87)]
IDS = (200, 3, 77, 5, VOCAB - 1)
Checkpoint = Callable[[str], tuple[Path, Any]]


def assert_as_in_transformers(
    model: Any, tokens: Sequence[int], found: Sequence[TokenLogprob], ids: Sequence[int]
) -> None:
    with torch.inference_mode():
        values = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    assert [each.token for each in found] == list(tokens)
    for each, row in zip(found, values, strict=True):
        assert [token for token, _ in each.top] == list(ids)
        assert [value for _, value in each.top] == pytest.approx(row[list(ids)].tolist(), abs=1e-4)
        assert each.logprob == pytest.approx(row[each.token].item(), abs=1e-4)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("speculate", ["", "ngram"])
def test_given_tokens_replace_the_likeliest(checkpoint: Checkpoint, depth: int, speculate: str) -> None:
    folder, theirs = checkpoint("llama")
    engine = engine_on(folder, depth=depth)
    exact = replace(GREEDY, logprobs=2, logprob_token_ids=IDS, speculate=speculate)
    _, one = ask(engine, PROMPT, exact)
    _, usual = ask(engine, PROMPT, replace(GREEDY, logprobs=3))
    _, other = ask(engine, PROMPT, replace(exact, logprobs=0, logprob_token_ids=(9,)))
    drain(engine)
    assert_as_in_transformers(theirs, one.tokens, one.logprobs, IDS)
    assert_as_in_transformers(theirs, other.tokens, other.logprobs, (9,))
    assert close_to(usual.logprobs, alone(folder, PROMPT, replace(GREEDY, logprobs=3)).logprobs)
    assert one.tokens == usual.tokens == other.tokens == alone(folder, PROMPT).tokens


def test_they_may_change_while_a_reply_runs(checkpoint: Checkpoint) -> None:
    folder, theirs = checkpoint("llama")
    engine = engine_on(folder)
    id, output = ask(engine, PROMPT, replace(GREEDY, logprobs=0, logprob_token_ids=IDS))
    while len(output.tokens) < 5:
        turn(engine)
    engine.update(id, logprob_token_ids=(8, 9))
    drain(engine)
    assert [len(each.top) for each in output.logprobs] == [5] * 5 + [2] * 19
    assert_as_in_transformers(theirs, output.tokens[:5], output.logprobs[:5], IDS)


def test_a_token_that_is_not_allowed_has_the_lowest_number() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [1.0, 2.0, 3.0]])
    found = read_logprobs(logits, torch.tensor([2, 2]), ((0, 0), (1, 2)), {0: (1, 2, 0)})
    expected = logits.log_softmax(-1)
    assert found.requested == ((0, 3), (1, 2))
    assert found.ids[0].tolist() == [1, 2, 0] and found.ids[1, :2].tolist() == [2, 1]
    assert found.values[0, 0] == torch.finfo(torch.float32).min
    torch.testing.assert_close(found.values[0, 1:], expected[0, [2, 0]])
    torch.testing.assert_close(found.values[1, :2], expected[1, [2, 1]])


def test_a_list_holds_each_token_once() -> None:
    assert GREEDY.changed(logprobs=0, logprob_token_ids=[5, 3, 5]).logprob_token_ids == (5, 3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"logprobs": None}, "requires logprobs"),
        ({"max_tokens": 0}, "requires max_tokens above 0"),
        ({"logprob_token_ids": range(1025)}, "at most 1024 tokens"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], problem: str) -> None:
    params = replace(GREEDY, logprobs=0, logprob_token_ids=(1,))
    with pytest.raises(BadParams, match=f"logprob_token_ids: {problem}"):
        params.changed(**changes)


def test_a_token_outside_the_vocabulary_is_refused(llama: Path) -> None:
    with pytest.raises(BadParams, match="logprob_token_ids: token id 272 is out of range"):
        ask(engine_on(llama), PROMPT, replace(GREEDY, logprobs=0, logprob_token_ids=(VOCAB,)))
