"""Users learn of forms of weights and cache that are lost: by a restart, or as a conversion fails."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.api.events import Died, Event, Quantized, Restarting
from engine.api.snapshot import Change
from minichat.clients.fake import FakeBackend
from minichat.clients.protocol import LinkBack, LinkLost
from minichat.features.leaving import RESTART
from tests.app.conftest import run, snapshot

FORMS = {"quantization": "int8", "kv_scheme": "fp8"}
RESTARTS = [
    Died(7, 1.0, "out of memory"),
    Restarting(7, 1.0, "out of memory", 1.0),
    LinkBack(0, 1.0, 2.0, True),
    LinkLost(0, 1.0, "the engine was killed", ended=True),  # F5 starts another
]


@run
@pytest.mark.parametrize("event", RESTARTS, ids=lambda event: event.kind)
async def test_a_restarted_engine_that_lost_its_forms_is_reported(
    bench: Callable[..., Any], event: Event
) -> None:
    async with bench(backend=FakeBackend([snapshot()])) as it:
        it.main.show_snapshot(snapshot(3, **FORMS))
        it.main.show_events([event])
        it.main.show_snapshot(replace(snapshot(3, **FORMS), state="dead"))
        it.main.show_snapshot(snapshot(1))
        it.main.show_snapshot(snapshot(2))
        what = "the weights are no longer int8 and the KV cache is no longer fp8"
        await it.until(lambda: it.notices() == [f"The engine was restarted: {what}"])


@run
async def test_other_changes_are_not(bench: Callable[..., Any]) -> None:
    async with bench(backend=FakeBackend([snapshot()])) as it:
        it.main.show_snapshot(snapshot(3, **FORMS))  # converted
        it.main.show_events([LinkBack(0, 1.0, 2.0, False)])
        it.main.show_snapshot(snapshot(4))  # by another screen
        it.main.show_events([Died(7, 1.0, "out of memory")])
        it.main.show_snapshot(snapshot(1, model="another", **FORMS))
        it.main.show_events([Died(7, 1.0, "out of memory")])
        it.main.show_snapshot(snapshot(1, model="another", quantization="int4", kv_scheme="fp8"))
        await it.until(lambda: it.notices() == ["The engine was restarted: the weights are int4 now"])


@run
async def test_a_form_is_there_again_only_if_this_model_had_it_before(bench: Callable[..., Any]) -> None:
    cases = [
        (FORMS, "the weights are int8 now and the KV cache is fp8 now"),
        (
            {"quantization": "int4", "kv_scheme": "int8"},
            "the weights are int4 now and the KV cache is int8 now",
        ),
        (FORMS, "the weights are int8 again and the KV cache is fp8 again"),
    ]
    async with bench(backend=FakeBackend([snapshot()])) as it:
        it.main.show_snapshot(snapshot(1, model="another", quantization="int4"))
        it.main.show_snapshot(snapshot(1))
        for number, (forms, _) in enumerate(cases, 1):
            it.main.show_events([LinkBack(0, 1.0, 2.0, True)])
            it.main.show_snapshot(snapshot(number, **forms))
        said = [f"The engine was restarted: {what}" for _, what in cases]
        await it.until(lambda: it.notices() == said)


FAILED = Quantized(7, 1.0, "int8", "none", 64, 2.0, "OutOfMemoryError: 3 GB")
DONE = Quantized(8, 2.0, "int4", "none", 64, 2.0, "")


@run
async def test_a_failed_conversion_is_reported_unless_the_drawer_shows_it(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), backend=FakeBackend([snapshot()])) as it:
        await it.pilot.press("f4")
        it.main.show_events([FAILED])
        await it.pilot.press("f4")
        it.main.show_events([DONE])
        assert not it.notices()
        it.main.show_events([FAILED])
        said = "The weights are not changed to int8: OutOfMemoryError: 3 GB"
        await it.until(lambda: it.notices() == [said])


@run
@pytest.mark.parametrize(("error", "to"), [("", "to int8"), ("it was canceled", "back to none")])
async def test_a_restart_that_would_end_a_conversion_is_confirmed(
    bench: Callable[..., Any], error: str, to: str
) -> None:
    converting = replace(snapshot(), change=Change("int8", 3, 8, error))
    async with bench(backend=FakeBackend([converting])) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("f5")
        said = f"The weights are changing {to}; press F5 again to stop and restart"
        await it.until(lambda: it.notices() == [said])
        assert it.app.return_code is None
        await it.pilot.press("f5")
        await it.until(lambda: it.app.return_code == RESTART)
