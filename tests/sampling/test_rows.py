"""Sampling slots: taken, changed while in use, released, and taken again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadParams
from engine.api.params import SamplingParams
from engine.sampling.penalties import SeenTokens
from engine.sampling.rows import SamplingRows
from engine.sampling.sampler import edited, sample
from tests.sampling.cases import CPU, make_rows

VOCAB = 30
PLAIN = SamplingParams(temperature=0.0)
PENALIZED = PLAIN.changed(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
LOGITS = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))


def scores(rows: SamplingRows, slot: int) -> list[float]:
    return edited(LOGITS, rows.view([slot], [0]))[0].tolist()


def set_slot(
    rows: SamplingRows,
    slot: int,
    params: SamplingParams,
    tokens: list[int],
    pending: torch.Tensor | None = None,
) -> None:
    rows.set(slot, params, seed=1, end_ids=(), tokens=tokens, prompt_len=3, pending=pending)


@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=3),
    reply=st.lists(st.integers(0, VOCAB - 1), max_size=12),
    cut=st.integers(0, 12),
    pending=st.booleans(),
)
def test_counting_incrementally_equals_counting_from_scratch(
    prompt: list[int], reply: list[int], cut: int, pending: bool
) -> None:
    """Penalties may be set after any number of tokens, with the last one pending or on the host."""
    expected = make_rows([PENALIZED], VOCAB, tokens=[prompt + reply], prompt_len=3)
    rows = SamplingRows(2, VOCAB, CPU)
    set_slot(rows, 0, PLAIN, prompt)
    cut = min(cut, len(reply))
    for token in reply[:cut]:
        rows.note([0], torch.tensor([token]))
    if pending and cut:
        set_slot(rows, 0, PENALIZED, prompt + reply[: cut - 1], torch.tensor(reply[cut - 1 : cut]))
    else:
        set_slot(rows, 0, PENALIZED, prompt + reply[:cut])
    for token in reply[cut:]:
        rows.note([1, 0], torch.tensor([29 - token, token]))
    assert scores(rows, 0) == scores(expected, 0)


def test_setting_a_slot_twice_changes_nothing() -> None:
    rows = SamplingRows(1, VOCAB, CPU)
    set_slot(rows, 0, PENALIZED, [1, 2, 3, 4, 4])
    once = scores(rows, 0)
    set_slot(rows, 0, PENALIZED, [1, 2, 3, 4, 4])
    assert scores(rows, 0) == once


def test_a_slot_keeps_nothing_of_its_last_request() -> None:
    full = SamplingParams(
        temperature=0.5, top_k=2, repetition_penalty=2.0, logit_bias={3: 9.0}, min_tokens=5, logprobs=2
    )
    rows, fresh = SamplingRows(2, VOCAB, CPU), SamplingRows(2, VOCAB, CPU)
    rows.set(0, full, seed=4, end_ids=(6,), tokens=[1, 2, 3, 4, 4], prompt_len=2)
    rows.view([0], [0])
    rows.clear(0)
    for each in (rows, fresh):
        set_slot(each, 0, PENALIZED, [7, 8, 9])
    assert scores(rows, 0) == scores(fresh, 0)
    set_slot(rows, 0, PLAIN, [7, 8, 9])
    got = sample(LOGITS, rows.view([0], [0]))
    assert got.ids.item() == LOGITS.argmax().item()
    assert got.logprobs is None


def test_changes_of_another_row_do_not_change_a_row() -> None:
    """The same seed and index give the same token while the other row is changed."""
    rows = SamplingRows(2, VOCAB, CPU)
    params = SamplingParams(temperature=1.3)
    set_slot(rows, 0, params, [1, 2, 3])
    logits = LOGITS.expand(2, -1)
    drawn = []
    for other in (PLAIN, PENALIZED, params.changed(top_p=0.2), SamplingParams(logit_bias={1: 5.0})):
        set_slot(rows, 1, other, [4, 5, 6, 7])
        drawn.append([sample(logits, rows.view([0, 1], [index, 3])).ids[0].item() for index in range(20)])
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3]
    assert len(set(drawn[0])) > 3


def test_the_stream_depends_only_on_seed_and_index() -> None:
    rows = SamplingRows(3, VOCAB, CPU)
    for slot in (0, 2):
        set_slot(rows, slot, SamplingParams(temperature=1.3), [1, 2, 3])
    uniforms = rows.view([2, 0, 2], [5, 5, 6]).on_device("uniform").tolist()
    assert uniforms[0] == uniforms[1] != uniforms[2]


def test_counts_saturate_at_the_limit_of_int16() -> None:
    seen = SeenTokens(1, 4, CPU)
    seen.start(0, [], [2] * 40_000, torch.tensor([2]))
    seen.add(torch.tensor([0]), torch.tensor([2]))
    strengths = torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 1)
    got = seen.penalize(torch.zeros(1, 4), torch.tensor([0]), *strengths)
    assert got.tolist() == [[0, 0, -32767, 0]]


def test_an_impossible_bias_is_named() -> None:
    with pytest.raises(BadParams, match="logit_bias: token 30 is not in the vocabulary of 30"):
        set_slot(SamplingRows(1, VOCAB, CPU), 0, SamplingParams(logit_bias={30: 1.0}), [1, 2, 3])
