"""Staging buffers to the device and sampled tokens back, in Triton's interpreter and on a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize(("words", "news"), [(20, 3), (1500, 600)])
def test_the_next_piece_is_copied_in(call: Callable[..., Any], words: int, news: int) -> None:
    torch.manual_seed(words)
    pieces = torch.randint(-9, 9, (3, words))
    cells = torch.full((news,), -1)
    cells[: news // 2] = torch.randperm(40 * 50)[: news // 2]
    pieces[1, :news], pieces[1, news : 2 * news] = cells, torch.arange(news) + 100
    there, tables, turn = torch.full((words,), -7), torch.randint(0, 99, (40, 50)).int(), torch.tensor([1])
    _, (found, mirror, *_) = call("kv.staging", "copy_in", there, tables, pieces, turn, news)
    assert torch.equal(found, pieces[1])
    expected = tables.clone().view(-1)
    expected[cells[: news // 2]] = (torch.arange(news // 2) + 100).int()
    assert torch.equal(mirror.view(-1), expected)


@pytest.mark.parametrize("count", [1, 5, 512])
def test_tokens_are_copied_out_and_the_next_piece_follows(call: Callable[..., Any], count: int) -> None:
    begin, words = 7, 530
    pieces, there = torch.zeros(3, words, dtype=torch.int64), torch.arange(words)
    for turn in range(3):
        _, (found, _, after, *_) = call(
            "kv.staging", "copy_out", pieces, there, torch.tensor([turn]), begin, count
        )
        expected = pieces.clone()
        expected[turn, begin : begin + count] = there[begin : begin + count]
        assert torch.equal(found, expected)
        assert after.item() == (turn + 1) % 3
