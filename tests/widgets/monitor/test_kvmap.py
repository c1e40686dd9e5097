"""The map of KV blocks on a terminal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.color import Color as RichColor
from textual.geometry import Region

from engine.api.snapshot import ReplicaView, Snapshot, TierView, loaded_from, stored_in
from minichat.shell.themes import OKABE_ITO
from minichat.ui.monitor import KVMap
from minichat.ui.monitor.cells import Tint
from minichat.ui.monitor.owners import Owner
from tests.waiting import until
from tests.widgets.monitor.snapshots import OWNERS, blocks, request, snapshot
from tests.widgets.monitor.stage import lines, received, staged

TWO = (request(0, blocks=(0, 1, 2, 3)), request(1, blocks=(0, 1, 4)))  # they share blocks 0 and 1


def small(step: int = 100, **changes: Any) -> Snapshot:
    """Eight blocks: two shared, two of A, one of B, one left by C, two free."""
    return snapshot(8, TWO, step, blocks=blocks(8, TWO, {5: 2}, {3: 4}, {5: 60}), **changes)


def color(widget: KVMap, x: int, y: int) -> tuple[RichColor | None, RichColor | None]:
    strip = widget.render_line(y).crop(x, x + 1)
    style = next(iter(strip)).style
    assert style is not None
    return style.color, style.bgcolor


async def test_without_color_letters_show_owner_and_state() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (47, 8), focus=False):
        kvmap.update_from(small(), OWNERS)
        heading, first, *_ = lines(kvmap)
        assert heading.split() == ["1", "KV", "map", "62%", "1", "block/cell", "owner", "~"]
        assert first.rstrip() == "++++++++AAAAAAAABBBBcccc........"
        assert lines(kvmap)[-2:] == [
            " # A 4  # B 1".ljust(47),
            " + shared 2  c cached 1  host 3/64  . free 2".ljust(47)[:47],
        ]


async def test_the_letters_below_the_map_are_those_on_it() -> None:
    kvmap = KVMap(ascii=True)
    below = {
        Tint.OWNER: "+ shared 2  c cached 1  host 3/64  . free 2",
        Tint.AGE: "shared 2  cached 1  host 3/64  . free 2",
        Tint.REFERENCES: "shared 2  - cached 1  host 3/64  . free 2",
        Tint.FILL: "shared 2  - cached 1  host 3/64  . free 2",
        Tint.TIER: "shared 2  cached 1  host 3/64  . free 2",
    }
    async with staged(kvmap, (60, 8), focus=False):
        for kvmap.tint in Tint:
            kvmap.update_from(small(), OWNERS)
            first, last = lines(kvmap)[1], lines(kvmap)[-1]
            assert last.strip() == below[kvmap.tint]
            assert ("-" in first) == ("-" in last or kvmap.tint is Tint.TIER)  # there it is a computed block


async def test_no_color_uses_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    kvmap = KVMap()
    async with staged(kvmap, (40, 8)):
        kvmap.update_from(small(), OWNERS)
        assert not kvmap.halves
        assert "AAAAAAAABBBBcccc" in lines(kvmap)[1]


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        ({}, " + shared 2  cached 0"),
        ({5: 15}, " + shared 2  p cached 1"),
        ({5: 3, 6: 15, 7: 15}, " + shared 2  pd cached 3"),
        ({5: 3, 6: 900, 7: 900}, " + shared 2  -d cached 3"),
        ({5: 2, 6: 18}, " + shared 2  c cached 2"),
        ({block: block for block in range(5, 14)}, " + shared 2  fghi~ cached 9"),
    ],
)
async def test_letters_of_cached_blocks_are_those_on_the_map(left: dict[int, int], shown: str) -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (60, 8), focus=False):
        kvmap.update_from(snapshot(16, TWO, blocks=blocks(16, TWO, left)), OWNERS)
        assert lines(kvmap)[-1].partition("  host")[0] == shown


async def test_ansi_themes_use_colored_letters() -> None:
    kvmap = KVMap()
    async with staged(kvmap, (40, 8), theme="terminal"):
        kvmap.update_from(small(), OWNERS)
        assert "AAAAAAAABBBBcccc" in lines(kvmap)[1]
        assert color(kvmap, 8, 1)[0] == RichColor.from_ansi(4)


async def test_half_blocks_have_one_hue_per_owner() -> None:
    kvmap = KVMap()
    async with staged(kvmap, (16, 5), focus=False) as pilot:
        full = snapshot(64, (request(0, blocks=range(16)), request(1, blocks=range(16, 32))))
        kvmap.update_from(full, OWNERS)
        assert kvmap.halves
        # 16 columns and four half lines: A in the upper half, B in the lower; the other blocks are free.
        assert lines(kvmap)[1] == "▀" * 16
        above, below = color(kvmap, 5, 1)
        assert above == RichColor.parse(OKABE_ITO[0].lower())
        assert below == RichColor.parse(OKABE_ITO[1].lower())
        free, same = color(kvmap, 5, 2)
        assert free is None
        assert same == RichColor.parse(pilot.app.theme_variables["map-free"].lower())


async def test_a_partial_block_is_darker() -> None:
    kvmap = KVMap()
    async with staged(kvmap, (16, 5), focus=False):
        one = (request(0, blocks=range(16)),)
        levels = []
        for tokens in (1, 8, 12, 16):
            kvmap.update_from(snapshot(64, one, blocks=blocks(64, one, None, {5: tokens})), OWNERS)
            found = color(kvmap, 5, 1)[0]
            assert found
            levels.append(sum(found.get_truecolor()))
        assert levels == sorted(set(levels))


async def test_only_changed_lines_are_repainted(monkeypatch: pytest.MonkeyPatch) -> None:
    kvmap = KVMap()
    async with staged(kvmap, (64, 19)) as pilot:
        one = request(0, blocks=range(500))
        kvmap.update_from(snapshot(2048, (one,)), OWNERS)
        await pilot.pause()
        regions: list[Region] = []
        monkeypatch.setattr(kvmap, "refresh", lambda *dirty, **_: regions.extend(dirty))
        kvmap.update_from(snapshot(2048, (one,), step=101), OWNERS)
        assert regions == []
        more = one._replace(blocks=(*one.blocks, 1500))
        kvmap.update_from(snapshot(2048, (more,), step=102), OWNERS)
        # Block 1500 is in half line 23, so in the twelfth line below the heading; the legend follows.
        assert {region.y for region in regions} == {0, 12, 17}
        assert {region.height for region in regions} == {1}


async def test_a_hidden_map_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kvmap = KVMap()
    async with staged(kvmap) as pilot:
        kvmap.display = False
        await pilot.pause()
        monkeypatch.setattr("minichat.ui.monitor.kvmap.states", None)  # would raise if called
        kvmap.update_from(small(), OWNERS)
        monkeypatch.undo()
        kvmap.display = True
        await until(lambda: kvmap.size.height and "62%" in lines(kvmap)[0])


async def test_enter_lists_the_holders_of_the_blocks() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (40, 8)) as pilot:
        kvmap.update_from(small(), OWNERS)
        await pilot.press("enter")
        assert [line.rstrip() for line in lines(kvmap)[:2]] == [
            ">1 KV map  1 block             Esc back",
            " 0  shared  16/16 A 0  B 1",
        ]
        await pilot.press("right", "right", "right")
        assert lines(kvmap)[1].rstrip() == " 3  used     4/16 A 0"
        await pilot.press("right", "right")
        assert lines(kvmap)[1].rstrip() == " 5  cached  16/16 of C 2  40 steps ago"
        kvmap.update_from(small(step=61), OWNERS)
        assert lines(kvmap)[1].rstrip() == " 5  cached  16/16 of C 2  1 step ago"
        await pilot.press("right")
        assert lines(kvmap)[1].rstrip() == " 6  free"
        await pilot.press("escape")
        assert not kvmap.zoomed
        pointed = [
            message.blocks for message in received(pilot, KVMap.Pointed) if isinstance(message, KVMap.Pointed)
        ]
        assert pointed == [(0,), (1,), (2,), (3,), (4,), (5,), (6,)]


async def test_the_list_of_a_large_cell_scrolls() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (10, 6)) as pilot:
        kvmap.update_from(snapshot(900), OWNERS)
        await pilot.press("enter", "down", "down")
        assert [int(line.split()[0]) for line in lines(kvmap)[1:]] == [2, 3, 4, 5, 6]
        kvmap.action_move(0, 40)
        assert [int(line.split()[0]) for line in lines(kvmap)[1:]] == [25, 26, 27, 28, 29]


async def test_the_cursor_stays_on_the_map() -> None:
    kvmap = KVMap()
    async with staged(kvmap, (20, 8)) as pilot:
        kvmap.update_from(snapshot(400), OWNERS)
        await pilot.press("up", "left")
        assert kvmap.pointed()[0] == 0
        kvmap.action_move(30, 30)
        assert max(kvmap.pointed()) <= 399
        assert "┼" in lines(kvmap)[5]
        await pilot.resize_terminal(10, 6)
        await pilot.pause()
        assert sum(line.count("┼") for line in lines(kvmap)) == 1


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, '1 block 0: 1 shared  "not a hat"'),
        (30, '1 block 0: 1 shared  "not a~"'),
        (25, "1 block 0: 1 shared"),
    ],
)
async def test_the_text_of_a_block_does_not_look_like_its_state(width: int, shown: str) -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (width, 8)) as pilot:
        kvmap.update_from(small(), OWNERS)
        await pilot.press("up")
        kvmap.tell({0: "not a\n hat"})
        assert lines(kvmap)[-1].strip() == shown


async def test_a_click_moves_the_cursor() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (40, 8)) as pilot:
        kvmap.update_from(small(), OWNERS)
        await pilot.click(KVMap, offset=(17, 1))
        assert kvmap.pointed() == (4,)


async def test_orders_and_tints_cycle() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (40, 8), focus=False):
        scattered = (request(0, blocks=(1, 5)), request(1, blocks=(0, 6)))
        kvmap.update_from(snapshot(8, scattered, blocks=blocks(8, scattered, None, {5: 4})), OWNERS)
        assert lines(kvmap)[1].rstrip() == "BBBBAAAA............AAAABBBB...."
        kvmap.next_order()
        assert lines(kvmap)[1].rstrip() == "AAAAAAAABBBBBBBB................"
        kvmap.next_order()
        seen = []
        for _ in range(5):
            kvmap.next_tint()
            seen.append((str(kvmap.tint), lines(kvmap)[1].rstrip()[:8], lines(kvmap)[1][20:24]))
        assert seen == [
            ("age", "00000000", "0000"),
            ("references", "11111111", "1111"),
            ("fill", "77777777", "1111"),
            ("tier", "--------", "----"),
            ("owner", "BBBBAAAA", "AAAA"),
        ]
        kvmap.next_tint()
        assert lines(kvmap)[-2].rstrip() == " now 01234567 long unused"


async def test_blocks_are_colored_by_the_tier_they_went_to_or_came_from() -> None:
    moved = np.array([0, stored_in(0), loaded_from(1), stored_in(1), 0, loaded_from(0), 0, 0], np.int8)
    view = replace(blocks(8, TWO, {5: 2}), moved=moved)
    shot = snapshot(8, TWO, blocks=view, tiers=(TierView("disk", 3, 9),))
    for letters in (True, False):
        kvmap = KVMap(ascii=letters)
        kvmap.tint = Tint.TIER
        async with staged(kvmap, (76, 8)) as pilot:
            kvmap.update_from(shot, OWNERS)
            sign = "hHdD-" if letters else "■■■■■"
            words = ("to host 1", "from host 1", "to disk 1", "from disk 1", "computed 2")
            assert lines(kvmap)[-2].split() == [
                word for letter, part in zip(sign, words, strict=True) for word in (letter, *part.split())
            ]
            if letters:
                await pilot.press("right", "right", "enter")
                assert lines(kvmap)[1].split() == ["2", "used", "16/16", "from", "disk", "A", "0"]
                kvmap.zoomed = False
                kvmap.redraw()
                assert lines(kvmap)[1].split()[0] == "----hhhhXXXXdddd----HHHH........"
            else:
                shades = [color(kvmap, 4 * block, 1)[0] for block in (1, 2, 3, 4, 5, 6)]
                assert len(set(shades)) == 6 and None not in shades


async def test_letters_can_be_chosen_on_a_color_terminal() -> None:
    kvmap = KVMap()
    async with staged(kvmap, (40, 8)):
        kvmap.update_from(small(), OWNERS)
        kvmap.toggle_letters()
        assert "AAAAAAAABBBB" in lines(kvmap)[1]
        kvmap.toggle_letters()
        assert "A" not in lines(kvmap)[1]


async def test_blocks_are_highlighted() -> None:
    kvmap = KVMap()
    async with staged(kvmap, (40, 8), focus=False):
        kvmap.update_from(small(), OWNERS)
        kvmap.glow((2, 99))
        assert lines(kvmap)[1].count("*") == 4
        kvmap.glow(())
        assert "*" not in lines(kvmap)[1]


async def test_a_new_owner_gets_a_color_at_once() -> None:
    kvmap = KVMap(ascii=True)
    owners: dict[int, Owner] = {}
    async with staged(kvmap, (40, 8), focus=False):
        kvmap.update_from(small(), owners)
        assert "????" in lines(kvmap)[1]
        owners[0] = Owner("Q", 3)
        kvmap.update_from(small(101), owners)
        assert lines(kvmap)[1][8:16] == "QQQQQQQQ"


async def test_another_theme_changes_the_colors() -> None:
    kvmap = KVMap()
    async with staged(kvmap, (16, 5)) as pilot:
        kvmap.update_from(snapshot(64), OWNERS)
        dark = color(kvmap, 5, 1)
        pilot.app.theme = "minichat-light"
        await pilot.pause()
        assert color(kvmap, 5, 1) != dark


def fleet() -> Snapshot:
    """Two replicas of eight blocks: A has four of the first one's, B two of the other's."""
    both = (request(0, blocks=(0, 1, 2, 3)), request(1, blocks=(10, 11)))
    views = tuple(
        ReplicaView(number, state, "", "cpu", 1, 0, 8, in_use, 0)
        for number, state, in_use in ((0, "ready", 4), (1, "draining", 2))
    )
    return snapshot(16, both, blocks=blocks(16, both), replicas=views)


async def test_a_fleets_map_shows_all_replicas_or_one() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (64, 6)) as pilot:
        kvmap.update_from(fleet(), OWNERS)

        def shown() -> tuple[str, str, str]:
            heading, first, *_, owners, _ = lines(kvmap)
            return " ".join(heading.split()), first.strip(), owners.strip()

        kvmap.blur()
        await until(lambda: not kvmap.has_focus)
        assert shown() == (
            "1 KV map 2 replicas 38% 1 block/cell owner physical ~",
            "AAAAAAAAAAAAAAAA........................BBBBBBBB................",
            "# A 4  # B 2",
        )
        kvmap.next_replica()
        assert "replica 0 50%" in shown()[0]
        assert shown()[1:] == ("AAAAAAAAAAAAAAAA................", "# A 4")
        kvmap.next_replica()
        assert "replica 1 draining 25%" in shown()[0]
        assert shown()[1:] == ("........BBBBBBBB................", "# B 2")
        kvmap.next_order()
        assert shown()[1] == "BBBBBBBB........................"
        kvmap.focus()
        await until(lambda: kvmap.has_focus)
        assert kvmap.pointed() == (10,), "blocks keep their numbers of the whole fleet"
        kvmap.glow([3, 11])
        kvmap.next_replica()
        assert "2 replicas" in shown()[0]
        await pilot.pause()
        assert received(pilot, KVMap.Pointed)[-1].blocks == kvmap.pointed()


async def test_the_map_has_no_blocks_of_a_stopped_replica() -> None:
    kvmap, whole = KVMap(ascii=True), fleet()
    stopped = whole.replicas[1]._replace(state="stopped", in_use=0)
    half = blocks(16, (whole.requests[0],))
    async with staged(kvmap, (80, 6), focus=False):
        kvmap.update_from(replace(whole, blocks=half, replicas=(whole.replicas[0], stopped)), OWNERS)
        assert "1 of 2 replicas  50%" in lines(kvmap)[0] and "4 of 8" in lines(kvmap)[0]
        assert lines(kvmap)[1].rstrip() == "AAAAAAAAAAAAAAAA................"
        assert "free 4" in lines(kvmap)[-1]
        kvmap.next_replica()
        kvmap.next_replica()
        assert "replica 1 stopped  0%" in lines(kvmap)[0] and "0 of 0" in lines(kvmap)[0]
        assert "free 0" in lines(kvmap)[-1]


async def test_the_shown_replica_may_leave_the_fleet() -> None:
    kvmap = KVMap(ascii=True)
    async with staged(kvmap, (64, 6), focus=False):
        kvmap.update_from(fleet(), OWNERS)
        kvmap.next_replica()
        kvmap.update_from(small(), OWNERS)  # attached to another server
        assert "replica" not in lines(kvmap)[0]
        assert lines(kvmap)[1].rstrip().endswith("cccc........"), "all blocks"
