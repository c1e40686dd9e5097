"""The gated delta rule over states in blocks, against its plain form over whole texts."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.api.cache_spec import CacheSpec, StateSpec
from engine.attention.delta import DeltaRule
from engine.attention.recurrence import Recurrence
from engine.attention.state_runs import StateRuns
from engine.kv.store import KVStore
from tests.examples import examples
from tests.models.tiny import plain_recurrence

SIZES = StateSpec(heads=4, key_heads=2, key_dim=6, value_dim=5, taps=3)
SIZE, BLOCKS, LONGEST = 16, 40, 70
CPU = torch.device("cpu")


def inputs(count: int) -> tuple[Tensor, Tensor, DeltaRule]:
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(count, SIZES.channels, generator=draw)
    gates = torch.rand(count, 2, SIZES.heads, generator=draw)
    return x, gates, DeltaRule(SIZES, torch.randn(SIZES.channels, SIZES.taps, generator=draw))


def store() -> KVStore:
    made = KVStore(
        [CacheSpec.of_state(SIZES)],
        blocks=BLOCKS,
        block_size=SIZE,
        host_blocks=0,
        dtype=torch.float32,
        device=CPU,
    )
    for tensor in made.layers[0].tensors():
        tensor.fill_(torch.nan)  # whatever is read must have been written
    return made


Inputs = Callable[[int], tuple[Tensor, Tensor, Recurrence]]


class Rows:
    """Texts that are computed in steps of some rows each."""

    def __init__(self, lengths: Sequence[int], inputs: Inputs = inputs) -> None:
        x, gates, self.rule = inputs(sum(lengths))
        self.texts = [*zip(x.split(list(lengths)), gates.split(list(lengths)), strict=True)]
        widest = -(-max(lengths) // SIZE)
        self.tables = np.arange(len(lengths) * widest, dtype=np.int32).reshape(-1, widest)
        self.layer = store().layers[0]
        self.done = [0] * len(lengths)
        self.out: list[list[Tensor]] = [[] for _ in lengths]

    def step(self, rows: Sequence[tuple[int, int]]) -> None:
        """Compute `rows`: a text and how many of its tokens."""
        spans = []
        for text, count in rows:
            spans.append((text, slice(self.done[text], self.done[text] + count)))
            self.done[text] += count
        x, gates = (torch.cat([self.texts[text][part][span] for text, span in spans]) for part in (0, 1))
        starts = np.cumsum([0, *(count for _, count in rows)], dtype=np.int32)
        ends = np.array([span.stop for _, span in spans], np.int32)
        runs = StateRuns(starts, ends, self.tables[[text for text, _ in spans]], SIZE, CPU)
        found = self.rule.advance(x, gates, self.layer, runs)
        for (text, _), out in zip(spans, found.split([count for _, count in rows]), strict=True):
            self.out[text].append(out)


@examples(5)
@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_steps_and_other_rows_change_no_bit(lengths: list[int], random: object) -> None:
    """However texts are cut and put together, also a text's next tokens as rows of their own."""
    assert_steps_change_no_bit(lengths, random, inputs)


def assert_steps_change_no_bit(lengths: list[int], random: object, inputs: Inputs) -> None:
    rows = Rows(lengths, inputs)
    in_steps(rows, lengths, random)
    for text, length in enumerate(lengths):
        whole = Rows(lengths, inputs)
        whole.step([(text, length)])
        assert torch.equal(torch.cat(rows.out[text]), torch.cat(whole.out[text]))
        expected = plain_recurrence(*rows.texts[text], rows.rule)
        torch.testing.assert_close(torch.cat(rows.out[text]), expected, atol=1e-5, rtol=1e-4)


def in_steps(rows: Rows, lengths: list[int], random: object) -> None:
    while any(done < length for done, length in zip(rows.done, lengths, strict=True)):
        step = []
        for text, length in enumerate(lengths):
            left = length - rows.done[text]
            if left and random.random() < 0.7:  # type: ignore[attr-defined]
                count = random.choice([1, min(left, 5), left])  # type: ignore[attr-defined]
                singles = random.choice([0, min(count, 4)])  # type: ignore[attr-defined]
                step += [(text, 1)] * singles + [(text, count - singles)] * (count > singles)
        if step:
            rows.step(step)


def test_a_full_block_has_the_state_at_its_end() -> None:
    rows, short = Rows([50]), Rows([50])
    rows.step([(0, 50)])
    short.step([(0, 32)])
    for mine, other in zip(rows.layer.tensors(), short.layer.tensors(), strict=True):
        assert torch.equal(mine[:2], other[:2])
        assert mine[2:4].isfinite().all() and other[2:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_have_the_type_of_the_inputs(dtype: torch.dtype) -> None:
    rows = Rows([20])
    rows.texts = [(rows.texts[0][0].to(dtype), rows.texts[0][1])]
    rows.step([(0, 20)])
    assert rows.out[0][0].dtype is dtype
