"""Beam search in the engine gives the same tokens as transformers, whatever else is in the batch."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.events import Delta, Finished
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.serving.engine import Engine
from tests.cases import one_row_of
from tests.examples import examples
from tests.outputs import Outputs
from tests.runner.letters import EOS, byte_tokenizer
from tests.runner.small import drain, engine_on, turn

PROMPT = [1, *range(40, 77)]
A, B = (byte_tokenizer().token_to_id(letter) for letter in "ab")
Model = tuple[Path, Any]


@pytest.fixture(scope="module")
def engines(llama: Path) -> list[Engine]:
    return [engine_on(llama, depth=depth) for depth in (0, 1)]


@pytest.fixture(scope="module")
def theirs(checkpoint: Callable[[str], Model]) -> Any:
    return checkpoint("llama")[1]


def generate(
    model: Any, prompt: Sequence[int], params: SamplingParams, ends: Sequence[int], tokenizer: Any = None
) -> list[tuple[list[int], float]]:
    """Return transformers' replies, each with its score."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=params.beams,
        num_return_sequences=params.n,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        repetition_penalty=params.repetition_penalty,
        max_new_tokens=params.max_tokens,
        min_new_tokens=params.min_tokens or None,
        sequence_bias={(token,): bias for token, bias in params.logit_bias} or None,
        stop_strings=list(params.stop) or None,
        tokenizer=tokenizer,
        eos_token_id=list(ends) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    lengths = (found.beam_indices >= 0).sum(1).tolist()
    rows, scores = found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist()
    return [(row[:length], score) for row, length, score in zip(rows, lengths, scores, strict=True)]


def test_a_new_hypothesis_starts_in_the_decode_phase(engines: list[Engine]) -> None:
    """No fork of a search is shown in the prefill phase."""
    for engine in engines:
        result = Outputs()
        engine.submit(PROMPT, SamplingParams(beams=4, max_tokens=24), result)
        seen = []
        while engine.busy:
            turn(engine)
            seen.append({request.phase for request in engine.snapshot().requests if request.generated})
        assert set().union(*seen) == {"decode"}


def test_all_hypotheses_show_the_tokens_that_the_prompt_found_in_the_cache(llama: Path) -> None:
    """Not the whole prompt, which they share since the search began."""
    engine, shown = engine_on(llama), list[set[int]]()
    for _ in range(2):
        seen = set[int]()
        engine.submit(PROMPT, SamplingParams(beams=4, max_tokens=8, ignore_eos=True), Outputs())
        while engine.busy:
            engine.step()
            seen |= {each.cached_tokens for each in engine.snapshot().requests if each.generated}
        shown.append(seen)
    size = engine.scheduler.pool.block_size
    assert shown == [{0}, {(len(PROMPT) - 1) // size * size}]


def search(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> Outputs:
    result = Outputs()
    engine.submit(prompt, params, result)
    drain(engine)
    return result


def assert_same(result: Outputs, expected: list[tuple[list[int], float]]) -> None:
    assert result.replies == [tokens for tokens, _ in expected]
    scores = [one.score for _, one in sorted(result.choices.items())]
    assert scores == pytest.approx([score for _, score in expected], rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(("depth", "width"), one_row_of(2, product([0, 1], [2, 4, 10])))
def test_tokens_equal_those_of_generate(checkpoint: Callable[[str], Model], width: int, depth: int) -> None:
    folder, theirs = checkpoint("llama")
    params = SamplingParams(beams=width, n=width, max_tokens=30, ignore_eos=True)
    result = search(engine_on(folder, depth=depth), PROMPT, params)
    assert_same(result, generate(theirs, PROMPT, params, ()))


@st.composite
def searches(draw: st.DrawFn) -> SamplingParams:
    """Biases make end tokens likely, so that hypotheses end early, late, together, and never."""
    width = draw(st.sampled_from([2, 3, 4, 10]))
    most = draw(st.integers(1, 20))
    return SamplingParams(
        beams=width,
        n=draw(st.integers(1, width)),
        length_penalty=draw(st.sampled_from([1.0, 1.0, 0.0, 2.0, -1.0, 0.6])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
        **draw(
            st.sampled_from(
                [  # not both: there biases come before penalties, here after them
                    {},
                    {"repetition_penalty": 1.3},
                    {"logit_bias": {EOS: 3.0}},
                    {"logit_bias": {EOS: 4.5}},
                    {"logit_bias": {EOS: 4.0, A: 4.0}},
                ]
            )
        ),
        stop_ids=draw(st.sampled_from([(), (A,), (A, B)])),
        min_tokens=min(most, draw(st.sampled_from([0, 0, 4]))),
        max_tokens=most,
    )


@examples(13)
@given(params=searches(), length=st.integers(1, 38), depth=st.integers(0, 1))
def test_every_option_means_the_same_as_in_transformers(
    engines: list[Engine], theirs: Any, params: SamplingParams, length: int, depth: int
) -> None:
    result = search(engines[depth], PROMPT[:length], params)
    assert_same(result, generate(theirs, PROMPT[:length], params, sorted({EOS, *params.stop_ids})))


def test_stop_strings_end_a_hypothesis(checkpoint: Callable[[str], Model]) -> None:
    from transformers import PreTrainedTokenizerFast

    folder, theirs = checkpoint("llama")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ends = 0
    for stop in (("e",), ("th", "r"), ("a", "ne")):
        bias = {byte_tokenizer().token_to_id(letter): 3.0 for letter in "theran"}
        params = SamplingParams(
            beams=4, n=4, max_tokens=12, ignore_eos=True, stop=stop, logit_bias=bias, length_penalty=0.0
        )
        result = search(engine_on(folder), PROMPT, params)
        assert_same(result, generate(theirs, PROMPT, params, (), tokenizer))
        stopped = [one for one in result.choices.values() if one.finish is Finish.STOP]
        ends += len(stopped)
        assert not any(text in one.text for one in result.choices.values() for text in stop)
    assert ends > 2


@pytest.mark.parametrize("n", [1, 3])
def test_the_blocks_of_all_hypotheses_are_reported_at_the_end(llama: Path, n: int) -> None:
    engine = engine_on(llama)
    ends: list[tuple[int, int]] = []

    def on_delta(delta: Delta) -> None:
        if delta.finish:
            ends.append((delta.blocks, engine.scheduler.pool.in_use))

    engine.submit(PROMPT, SamplingParams(temperature=0, beams=4, n=n, max_tokens=20), on_delta)
    drain(engine)
    assert len(ends) == n
    assert all(blocks == in_use > 0 for blocks, in_use in ends)


@pytest.mark.parametrize("length_penalty", [-2.0, 0.0, 1.0])
def test_the_event_counts_the_tokens_of_the_reply(llama: Path, length_penalty: float) -> None:
    """A search goes on after the hypothesis that wins has ended."""
    engine = engine_on(llama)
    counts: list[int] = []
    engine.bus.subscribe(lambda event: counts.append(event.tokens) if type(event) is Finished else None)
    params = SamplingParams(beams=4, max_tokens=20, logit_bias={EOS: 4.0}, length_penalty=length_penalty)
    result = search(engine, PROMPT, params)
    assert counts == [len(result.choices[0].tokens)]
