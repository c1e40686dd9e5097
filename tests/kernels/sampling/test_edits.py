"""Penalties, biases and log-probabilities, interpreted and on a GPU, against engine/sampling."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.execution.prompt_logprobs import read_prompts
from engine.sampling.logprobs import rank_tokens, read_logprobs
from engine.sampling.penalties import SeenTokens
from engine.scheduling.step import PromptTargets
from tests.kernels import oracles

Call = Callable[..., Any]

pytest.importorskip("triton", reason="no Triton here")

VOCAB, SLOTS = 2500, 6
CPU = torch.device("cpu")
PENALTIES: list[dict[str, float]] = [
    {"repetition": 1.3},
    {"repetition": 0.8, "presence": 0.5},
    {},
    {"frequency": 0.25, "presence": -0.5},
]


def seen_tokens() -> SeenTokens:
    seen, draw = SeenTokens(SLOTS, VOCAB, CPU), torch.Generator().manual_seed(2)
    for slot in range(SLOTS):
        tokens = torch.randint(0, 60, (2, 40), generator=draw) * 41
        seen.start(slot, tokens[0].tolist(), tokens[1].tolist(), None)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_penalties_and_biases(call: Call, dtype: torch.dtype) -> None:
    seen, columns = seen_tokens(), oracles.settings(PENALTIES, VOCAB)
    slots = torch.tensor([4, 0, 2, 5])
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    places = torch.tensor([3 * VOCAB + 7, -1, 41, 3 * VOCAB + 7, VOCAB, -1])
    values = torch.tensor([1.5, 9.0, -2.0, -torch.inf, 0.25, 9.0])
    biases = places, values
    found, _ = call("sampling.edits", "edit", logits, columns, slots, (seen.prompt, seen.reply), biases)
    strengths = [columns[at].float()[:, None] for at in (4, 5, 6)]
    expected = seen.penalize(logits.float(), slots, *strengths)
    assert not torch.equal(expected, logits.float())
    expected.view(-1).index_put_((places[places >= 0],), values[places >= 0], accumulate=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    alone, _ = call("sampling.edits", "edit", logits, columns, slots, None, None)
    assert torch.equal(alone, logits.float())


def test_sampled_tokens_are_counted(call: Call) -> None:
    seen, columns = seen_tokens(), oracles.settings([*PENALTIES, PENALTIES[0]], VOCAB)
    slots, tokens = torch.tensor([4, 0, 2, 5, 1]), torch.tensor([41, 2, 3, 82, -1])
    seen.reply[5, 82] = 2**15 - 1
    _, (found, *_) = call("sampling.edits", "note", seen.reply, tokens, columns, slots)
    counted = [0, 1, 3]  # the third has no penalty, the last has no token
    seen.add(slots[counted], tokens[counted])
    assert torch.equal(found, seen.reply)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_log_probabilities(call: Call, dtype: torch.dtype) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    logits[2, 100:] = -torch.inf
    tokens = torch.tensor([int(logits[0].argmax()), 2499, 7, 3])
    expected = torch.tensor([5, 0, 3, -1], dtype=torch.int32)
    (chosen, ranks, ids, likely), _ = call("sampling.top_logprobs", "top_logprobs", logits, tokens, expected)
    right = read_logprobs(logits.float(), tokens, ((0, 5), (1, 0), (2, 3)))
    assert torch.equal(ranks[:3], right.ranks)
    assert ranks[0] == 1
    torch.testing.assert_close(chosen[:3], right.chosen, rtol=1e-5, atol=1e-5)
    for row, count in ((0, 5), (2, 3)):
        torch.testing.assert_close(likely[row, :count], right.values[row, :count], rtol=1e-5, atol=1e-5)
        picked = logits[row].float()
        assert torch.equal(picked[ids[row, :count]], picked[right.ids[row, :count]])
        assert len(set(ids[row, :count].tolist())) == count


@pytest.mark.parametrize("most", [0, 1, 20])
def test_ranked_tokens_of_a_prompt(call: Call, most: int) -> None:
    logits = torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(1)).mul(6)
    logits[1, 50:] = -torch.inf
    logits[2] = torch.nan
    logits[3, 2300] = torch.nan
    logits[4, :2048] = torch.nan
    ids = torch.tensor([3, 7, 0, 5, 2499, int(logits[5].argmax()), int(logits[6].argmin())])
    expected = rank_tokens(logits, ids, most)
    found, _ = call("sampling.top_logprobs", "rank_tokens", logits, ids, most)
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    numbers = [0, 1, 5, 6]
    assert found[0].isnan().tolist() == [row not in numbers for row in range(7)]
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine[numbers], right[numbers], rtol=1e-6, atol=1e-5)


@pytest.mark.cuda
def test_log_probabilities_of_prompts_on_a_gpu_are_those_of_a_cpu() -> None:
    logits = torch.randn(300, VOCAB, generator=torch.Generator().manual_seed(2)).mul(4)
    targets = PromptTargets(1, tuple(range(0, 600, 2)), 3)
    [expected] = read_prompts(lambda hidden: hidden, logits, [(7, 0, targets)]).by_request().values()
    with torch.inference_mode():
        there = read_prompts(lambda hidden: hidden, logits.cuda(), [(7, 0, targets)]).to_host()
    torch.cuda.synchronize()
    [found] = there.by_request().values()
    assert [(each.token, each.rank) for each in found] == [(each.token, each.rank) for each in expected]
    assert [[id for id, _ in each.top] for each in found] == [[id for id, _ in each.top] for each in expected]
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in expected], abs=1e-4)
