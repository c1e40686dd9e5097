"""The lines below the map of KV blocks."""

from dataclasses import replace

import pytest

from engine.api.snapshot import TierView
from minichat.ui.monitor import KVMap
from tests.widgets.monitor.snapshots import OWNERS, blocks, request, snapshot
from tests.widgets.monitor.stage import lines, staged

TWO = (request(0, blocks=(0, 1, 2, 3)), request(1, blocks=(0, 1, 4)))


@pytest.mark.parametrize(
    ("width", "owners", "states"),
    [
        (54, "# A 4  # B 1", "+ shared 2  c cached 1  host 3/64  . free 2  disk 5/9"),
        (53, "# A 4  # B 1", "+ shared 2  c cached 1  host 3/64  . free 2  ~"),
        (47, "# A 4  # B 1", "+ shared 2  c cached 1  host 3/64  . free 2  ~"),
        (46, "# A 4  # B 1", "+ shared 2  c cached 1  host 3/64  ~"),
        (14, "# A 4  # B 1", "+ shared 2  ~"),
        (12, "# A 4  ~", "~"),
    ],
)
async def test_what_does_not_fit_leaves_a_sign(width: int, owners: str, states: str) -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (width, 8), focus=False):
        shot = snapshot(8, TWO, 100, blocks=blocks(8, TWO, {5: 2}, {3: 4}, {5: 60}))
        kvmap.update_from(replace(shot, tiers=(TierView("disk", 5, 9),)), OWNERS)
        assert [line.strip() for line in lines(kvmap)[-2:]] == [owners, states]
