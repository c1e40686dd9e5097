"""Sampling: the right tokens with the right frequencies, whatever other rows the step has."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.sampling import sampler
from engine.sampling.sampler import pick, sample
from tests.sampling.cases import draw, make_rows, oracle_chances, sampleable, view_of


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@st.composite
def sampling(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from((0.0, 0.3, 1.0, 1.7))),
        top_k=draw(st.sampled_from((0, 0, 1, 5, 40, 10_000))),
        top_p=draw(st.sampled_from((1.0, 1.0, 0.05, 0.5, 0.9, 0.999))),
        min_p=draw(st.sampled_from((0.0, 0.0, 0.02, 0.5, 1.0))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 1.3, 0.8))),
        presence_penalty=draw(st.sampled_from((0.0, 0.0, 0.7))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.0, -0.4))),
        logit_bias=draw(st.sampled_from(((), ((3, 4.5), (60, -100.0))))),
        min_tokens=draw(st.sampled_from((0, 0, 9))),
        logprobs=draw(st.sampled_from((None, None, 0, 3))),
    )


@given(
    params=st.lists(sampling(), min_size=2, max_size=6),
    vocab=st.sampled_from((61, 64, 700, 1024)),
    part=st.sampled_from((1, 2**11, 2**17)),
    data=st.data(),
)
def test_other_rows_change_no_token(
    params: list[SamplingParams], vocab: int, part: int, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 999))
    logits = random_logits(len(params), vocab, seed)
    tokens = [[(slot * 7 + k * 3) % 61 for k in range(12)] for slot in range(len(params))]
    rows = make_rows(params, vocab, tokens=tokens, prompt_len=5, end_ids=(2, 3))
    alone = [sample(logits[slot : slot + 1], rows.view([slot], [7])) for slot in range(len(params))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "PART", part)
        order = data.draw(st.permutations(range(len(params))))
        together = sample(logits[order], rows.view(order, [7] * len(order)))
    assert together.ids.tolist() == [alone[slot].ids.item() for slot in order]
    assert not together.bad.any()


@given(st.floats(0.001, 1.0), st.integers(0, 999), st.sampled_from((1, 61, 700)))
def test_all_ways_to_find_the_nucleus_keep_the_same_tokens(top_p: float, seed: int, vocab: int) -> None:
    """Among the likeliest tokens, by sorting, by counting."""
    logits = random_logits(3, vocab, seed).round(decimals=1)  # with ties at the border
    view = view_of([SamplingParams(top_p=top_p)] * 3, vocab)
    found = []
    for likeliest, sortable in ((1000, 1000), (1, 1000), (1, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampler, "NUCLEUS", likeliest)
            patch.setattr(sampler, "SORTABLE", sortable)
            found.append(sampler.masses(logits, logits.amax(-1), view))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@given(sampling(), st.integers(0, 999))
def test_samples_what_the_oracle_samples(params: SamplingParams, seed: int) -> None:
    """Over a grid of uniforms, up to rounding at the borders between two tokens."""
    params = params.changed(temperature=params.temperature or 1.0)
    logits = random_logits(1, 200, seed)[0]
    uniforms = torch.linspace(0, 1 - 1e-9, 41, dtype=torch.float64)
    view = view_of([params] * 41, 200)
    mass = sampler.masses(logits.expand(41, -1), logits.max().expand(41), view)
    sums = oracle_chances(logits.numpy(), params).cumsum()
    for uniform, token in zip(uniforms.tolist(), pick(mass, uniforms).tolist(), strict=True):
        below = sums[token - 1] if token else 0.0
        assert below - 1e-5 <= uniform * sums[-1] <= sums[token] + 1e-5


@given(
    temperature=st.sampled_from((0.4, 1.0, 2.5)),
    top_k=st.sampled_from((0, 1, 7, 300, 5000)),
    top_p=st.sampled_from((1.0, 0.01, 0.3, 0.9, 0.97)),
    min_p=st.sampled_from((0.0, 0.01, 0.3)),
    seed=st.integers(0, 999),
)
def test_keeps_what_transformers_keeps(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = random_logits(1, 1000, seed)
    scores, ids = logits.clone(), torch.zeros(1, 1, dtype=torch.int64)
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1.0 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    for warper in warpers:
        scores = warper(ids, scores)
    chances = scores.softmax(-1)[0]
    theirs = set((chances > 1e-12).nonzero()[:, 0].tolist())
    mine = sampleable(
        logits[0], SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    )
    mine = {token for token in mine if chances[token] == 0.0 or chances[token] > 1e-12}
    assert mine == theirs


def test_penalties_are_those_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = random_logits(1, 300)
    history = [5, 9, 9, 250, 17, 17, 17]
    for strength in (0.7, 1.0, 1.3, 5.0):
        params = SamplingParams(temperature=0.0, repetition_penalty=strength, presence_penalty=0.01)
        rows = make_rows([params], 300, tokens=[history], prompt_len=4)
        theirs = RepetitionPenaltyLogitsProcessor(strength)(torch.tensor([history]), logits.clone())
        theirs[0, 17] -= 0.01
        view = rows.view([0], [3])
        assert torch.equal(sampler.edited(logits, view), theirs)


def test_presence_and_frequency_penalties_count_only_the_reply() -> None:
    logits = torch.zeros(1, 8)
    params = SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25)
    rows = make_rows([params], 8, tokens=[[1, 2, 3, 3, 4]], prompt_len=2)
    assert sampler.edited(logits, rows.view([0], [3])).tolist() == [[0, 0, 0, -1.0, -0.75, 0, 0, 0]]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(top_k=6, min_p=0.1),
        SamplingParams(temperature=1.5, top_k=12, top_p=0.8, min_p=0.05),
    ],
)
def test_frequencies_match_the_distribution(params: SamplingParams) -> None:
    logits, draws = random_logits(1, 40, seed=5, spread=1.5), 5_000
    rows = make_rows([params], 40)
    indices = list(range(draws))
    ids = sample(logits.expand(draws, -1), rows.view([0] * draws, indices)).ids
    expected = oracle_chances(logits[0].numpy(), params) * draws
    counts = np.bincount(ids.numpy(), minlength=40)
    assert not counts[expected == 0].any()
    seen = expected > 0
    chi_square = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    freedom = seen.sum() - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("vocab", [1, 5, 512, 513, 50_257])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_never_samples_an_excluded_token(vocab: int, uniform: float) -> None:
    """All but one token are excluded; the first, last or middle one that is left is sampled."""
    for token in {0, vocab // 2, vocab - 1}:
        logits = torch.full((1, vocab), -torch.inf)
        logits[0, token] = -3.0
        mass = sampler.masses(logits, logits.amax(-1), view_of([SamplingParams(top_p=0.5)], vocab))
        assert pick(mass, torch.tensor([uniform], dtype=torch.float64)).item() == token


def test_the_largest_uniform_samples_the_last_likely_token() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 700:] = -torch.inf
    mass = sampler.masses(logits, logits.amax(-1), view_of([SamplingParams()], 1000))
    assert pick(mass, torch.tensor([1 - 2**-53], dtype=torch.float64)).item() == 699


def test_ties_with_the_last_kept_token_are_kept() -> None:
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    assert sampleable(logits, SamplingParams(top_k=2)) == {0, 1, 2, 3}
    assert sampleable(logits, SamplingParams(top_p=0.5)) == {0, 1, 2, 3}


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    logits = random_logits(1, 300)
    cold = draw(logits, [SamplingParams(temperature=1e-40)])
    assert cold.ids.item() == logits.argmax().item()
    assert not cold.bad.any()


def test_greedy_takes_the_first_of_tied_tokens() -> None:
    logits = torch.zeros(2, 2000)
    logits[0, [700, 701, 1500]] = 4.0
    assert draw(logits, [SamplingParams(temperature=0.0)] * 2).ids.tolist() == [700, 0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(top_k=3, top_p=0.9, min_p=0.1),
        SamplingParams(repetition_penalty=1.2),
    ],
)
def test_a_bad_row_is_marked_and_affects_no_other(params: SamplingParams) -> None:
    logits = random_logits(5, 600)
    good = draw(logits, [params] * 5)
    broken = logits.clone()
    broken[1, 17] = torch.nan
    broken[2] = -torch.inf
    broken[4, 3] = torch.inf
    got = draw(broken, [params] * 5)
    assert got.bad.tolist() == [False, True, True, False, True]
    assert got.ids[got.bad].tolist() == [0, 0, 0]
    assert got.ids[[0, 3]].tolist() == good.ids[[0, 3]].tolist()
    assert not good.bad.any()


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = torch.zeros(1, 10)
    logits[0, 7], logits[0, 2] = 9.0, 5.0
    params = SamplingParams(temperature=0.0, min_tokens=3, logit_bias=((7, 1.0),))
    rows = make_rows([params], 10, end_ids=(7, 2, 99))
    assert sample(logits, rows.view([0], [2])).ids.item() not in (7, 2)
    assert sample(logits, rows.view([0], [3])).ids.item() == 7


def test_biases_add_to_single_tokens() -> None:
    logits = torch.zeros(2, 10)
    params = [SamplingParams(temperature=0.0, logit_bias={4: 2.0, 5: 1.0}), SamplingParams(temperature=0.0)]
    logits[:, 8] = 1.5
    assert draw(logits, params).ids.tolist() == [4, 8]


def test_logits_are_not_modified() -> None:
    """Log-probabilities are computed from them."""
    logits = random_logits(2, 100)
    before = logits.clone()
    params = SamplingParams(temperature=0.3, top_k=3, repetition_penalty=2.0, logit_bias={1: 5.0}, logprobs=1)
    draw(logits, [params, params])
    assert torch.equal(logits, before)


def test_logprobs_are_the_model_s_own() -> None:
    logits = random_logits(3, 100)
    params = SamplingParams(temperature=0.1, logit_bias={11: 100.0})
    asking = [params.changed(logprobs=0), params, params.changed(logprobs=4)]
    got = draw(logits, asking)
    assert got.ids.tolist() == [11, 11, 11]
    assert got.logprobs is not None
    assert got.logprobs.requested == ((0, 0), (2, 4))
    own = logits.double().log_softmax(-1)[[0, 2]]
    torch.testing.assert_close(got.logprobs.chosen.double(), own[:, 11], rtol=1e-5, atol=1e-5)
    assert got.logprobs.ranks.tolist() == [(row > row[11]).sum().item() + 1 for row in own]
    best = own[1].sort(descending=True)
    assert got.logprobs.ids[1].tolist() == best.indices[:4].tolist()
    torch.testing.assert_close(got.logprobs.values[1].double(), best.values[:4], rtol=1e-5, atol=1e-5)
    assert draw(logits, [params] * 3).logprobs is None
