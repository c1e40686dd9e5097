"""The rows of the quantization drawer, from what the engine reports."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.api.snapshot import Change, RankView, ReplicaView, SchemeView, TierView
from minichat.clients.fake import FakeBackend
from minichat.features.quantization import drawer
from minichat.features.quantization.figures import costs, memory, room, scheme, schemes
from minichat.ui.labels import facts
from tests.app.conftest import run, snapshot
from tests.app.engine.test_quantization import MEMORY


def test_the_present_scheme_has_its_measured_size_except_during_a_change() -> None:
    """Then the weights are a mixture of both schemes."""
    views = (SchemeView("none", "", 4_000), SchemeView("int8", "", 2_000))
    shot = replace(snapshot(), schemes=views, memory={"weights": 3_900})
    assert [each.nbytes for each in schemes(shot)] == [3_900, 2_000]
    halfway = replace(shot, memory={"weights": 3_000}, change=Change("int8", 3, 8))
    assert [each.nbytes for each in schemes(halfway)] == [4_000, 2_000]


def test_unknown_values_are_not_shown() -> None:
    shot = snapshot()
    assert memory({}) == ()
    assert {row[0]: row[1] for row in scheme(shot)}["weights"] == "float32, not quantized"
    quantized = replace(shot, quantization="int4, groups of 64")
    rows = [row[:2] for row in scheme(quantized)]
    assert rows[1:3] == [("weights", "int4, groups of 64"), ("computed in", "float32")]
    assert [row[0] for row in room(replace(shot, host_size=8, host_in_use=2))][-1] == "host"
    disk = replace(shot, tiers=(TierView("disk", 3, 9000),))
    assert room(disk)[-1] == ("disk", "3 of 9,000 blocks", None)
    assert memory(MEMORY | {"host_cache": 5})[2] == ("host cache", "5 B", None)


def test_blocks_are_counted_as_on_the_map() -> None:
    """Which sets apart those that a request has dropped, though they can be found and reused, too."""
    owner = np.array([0, 0, 1, 1, 1, -1])
    blocks = replace(snapshot().blocks, size=6, owner=owner, refs=np.array([1, 0, 0, 0, 0, 0]), in_use=1)
    shot = replace(snapshot(), blocks=replace(blocks, cached=4))
    assert [row[:2] for row in room(shot)[1:4]] == [("in use", "1"), ("cached", "4"), ("free", "1")]
    left = np.array([False, True, True, True, False, False])
    slid = room(replace(shot, blocks=replace(shot.blocks, left=left)))
    assert dict(row[:2] for row in slid[1:5]) == {"in use": "1", "cached": "1", "dropped": "3", "free": "1"}
    assert sum(row[2] or 0 for row in slid) == pytest.approx(1)


def test_the_drawer_says_what_the_products_are_computed_in() -> None:
    """Which is not the type of the rest, if the scheme is another type."""
    shot = replace(snapshot(), dtype="bfloat16")
    for name, words in (
        ("fp32", "float32, rest bfloat16"),
        ("fp16", "float16, rest bfloat16"),
        ("bf16", "bfloat16"),
        ("int8", "bfloat16"),
        ("fp8", "bfloat16, inputs in fp8"),
        ("bnb-int8", "bfloat16, inputs in int8"),
    ):
        assert dict(row[:2] for row in scheme(replace(shot, quantization=name)))["computed in"] == words


def test_sizes_of_a_shared_model_are_those_of_one_rank() -> None:
    ranks = tuple(RankView(rank, "cpu", 1, 0) for rank in range(2))
    rows = {row[0]: row[1] for row in scheme(replace(snapshot(), device="cpu", ranks=ranks))}
    assert (rows["runs on"], rows["sizes"]) == ("cpu, 2 ranks", "of one rank")
    replicas = tuple(ReplicaView(number, "ready", "", "cpu", 0, 0, 8, 0, 0) for number in range(2))
    rows = {row[0]: row[1] for row in scheme(replace(snapshot(), ranks=ranks, replicas=replicas))}
    assert rows["sizes"] == "of one rank per replica"
    rows = {row[0]: row[1] for row in scheme(replace(snapshot(), replicas=replicas))}
    assert rows["sizes"] == "of 2 replicas"


def test_a_dry_run_has_neither_weights_nor_a_device() -> None:
    """As `engine.dry` reports it."""
    shot = replace(snapshot(), model="tiny (dry)", dtype="none", device="none", kv_dtype="")
    assert facts(shot) == "tiny (dry)  dry run, no weights"
    shown = [row[:2] for row in scheme(shot)]
    assert shown == [("model", "tiny (dry)"), ("weights", "none (dry run)")]


@run
async def test_no_text_is_wrapped_before_the_drawer_has_a_width(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first it would have a letter on each line."""
    widths: list[int] = []

    def wrap(text: str, width: int) -> list[str]:
        widths.append(width)
        return [text]

    monkeypatch.setattr(drawer, "wrap", wrap)
    schemes = (SchemeView("none", "", 4_000_000_000), SchemeView("fp8", "it needs a GPU", 0))
    async with bench((120, 40), backend=FakeBackend([replace(snapshot(), schemes=schemes)])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "it needs a GPU" in it.screen_text())
    assert widths and min(widths) > 10


def test_a_stopped_replica_has_no_room() -> None:
    whole = snapshot()
    half = len(whole.blocks.refs) // 2
    replicas = tuple(
        ReplicaView(number, state, "", "cpu", 0, 0, half, 0, 0)
        for number, state in enumerate(("ready", "stopped"))
    )
    both, one = (dict(row[:2] for row in room(each)) for each in (whole, replace(whole, replicas=replicas)))
    tokens = whole.tokens_in(half)
    assert one["blocks"] == f"{half:,} of {whole.block_size} tokens"
    assert (one["tokens"], one["in use"]) == (f"{tokens:,} total", both["in use"])
    assert int(one["free"].replace(",", "")) == int(both["free"].replace(",", "")) - half


def test_millions_of_blocks_fit_beside_the_size() -> None:
    """A small model on a large GPU has them."""
    scheme = SchemeView("int8", "", 2_112, 2_529_544)
    assert costs(scheme, "", 26) == ["2.11 kB  2,529,544 blocks"]
    assert costs(scheme, "", 24) == ["2.11 kB  2.53M blocks"]
    assert costs(scheme, "0.312 ms", 24) == ["2.11 kB  2.53M blocks", "0.312 ms a step"]


@run
async def test_escape_cancels_a_conversion_only_where_the_drawer_says_so(bench: Callable[..., Any]) -> None:
    converting = replace(snapshot(), change=Change("int8", 3, 8))
    backend = FakeBackend([converting])
    async with bench((100, 40), backend=backend) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "Esc cancels" in it.screen_text())
        it.main.prompt.focus()
        await it.until(lambda: "Esc cancels" not in it.screen_text())
        assert "to int8: 3 of 8 layers" in it.screen_text()
        await it.pilot.press("escape")
        await it.until(lambda: not it.quantization.display)
        assert backend.quantized == []
        await it.pilot.press("f4")
        await it.until(lambda: "Esc cancels" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: backend.quantized == [""])


@run
async def test_a_click_selects_a_scheme_and_a_second_one_chooses_it(bench: Callable[..., Any]) -> None:
    schemes = (SchemeView("none", "", 4_000_000_000), SchemeView("int8", "", 2_200_000_000))
    backend = FakeBackend([replace(snapshot(), schemes=schemes)])
    async with bench((100, 40), backend=backend) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "2.20 GB" in it.screen_text())
        x, y = next(
            (line.index("int8") + 1, y)
            for y, line in enumerate(it.screen_text().splitlines())
            if "2.20 GB" in line
        )
        await it.pilot.click(offset=(x, y))
        assert (it.quantization.schemes.highlighted, backend.quantized) == (1, [])
        await it.pilot.click(offset=(x, y))
        await it.until(lambda: backend.quantized == ["int8"])


@run
async def test_keys_scroll_to_the_figures_below_the_schemes(bench: Callable[..., Any]) -> None:
    many = tuple(SchemeView(f"int{bits}", "", 1_300_000_000) for bits in range(30))
    async with bench((80, 24), backend=FakeBackend([snapshot(schemes=many, quantization="int8")])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "choose  PgDn more  Enter convert  Esc close" in it.screen_text())
        chosen = it.quantization.schemes.highlighted
        await it.pilot.press(*["pagedown"] * 4)
        await it.until(lambda: it.quantization.scroll_y == it.quantization.max_scroll_y)
        assert it.quantization.max_scroll_y > 0 and it.quantization.schemes.highlighted == chosen
        await it.pilot.press(*["pageup"] * 4)
        await it.until(lambda: it.quantization.scroll_y == 0)
