"""Block tables as one flat list, against loops over rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.pages import Pages


@given(st.integers(1, 32), st.lists(st.integers(1, 200), max_size=6), st.integers(0, 3), st.integers(0, 99))
def test_every_row_lists_its_blocks(size: int, contexts: list[int], spare: int, seed: int) -> None:
    needed = [-(-context // size) for context in contexts]
    shape = len(contexts), max(needed, default=0) + spare
    tables = np.random.default_rng(seed).integers(0, 10_000, shape, dtype=np.int32)
    pages = Pages.of(tables, np.array(contexts, np.int32), size)
    assert pages.starts[0] == 0
    assert pages.starts[-1] == len(pages.blocks)
    for row, (context, count) in enumerate(zip(contexts, needed, strict=True)):
        begin, end = pages.starts[row : row + 2].tolist()
        assert pages.blocks[begin:end].tolist() == tables[row, :count].tolist()
        assert (end - begin - 1) * size + int(pages.last[row]) == context
        assert 1 <= pages.last[row] <= size
    assert {each.dtype for each in (pages.starts, pages.blocks, pages.last)} == {pages.starts.dtype}
    assert str(pages.starts.dtype) == "torch.int32"
