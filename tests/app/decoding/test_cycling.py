"""Cycling through the presets gives a chat its own values back, also those that a preset has replaced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.api.params import SamplingParams
from tests.app.conftest import run
from tests.app.decoding.test_decoding import row

SHORT = '["short"]\ntemperature = 0.95\nmax_tokens = 30\nstop = ["END"]\n'


def saved(home: Path, text: str) -> None:
    file = home / ".config" / "minichat" / "presets.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


async def turned(it: Any, key: str = "right") -> tuple[str, int | None, tuple[str, ...]]:
    """The preset that this key chooses, and what is then the maximum length and the stops."""
    row(it, "preset")
    await it.pilot.press(key)
    params = it.app.chats.active.chat.params
    return it.drawer.knobs.preset, params.max_tokens, params.stop


@run
async def test_values_of_a_preset_do_not_stay_in_others(bench: Callable[..., Any], tmp_path: Path) -> None:
    saved(tmp_path, SHORT)
    async with bench((100, 40)) as it:
        active = it.app.chats.active
        own = SamplingParams(temperature=0.7, top_k=40, max_tokens=500)
        active.tune(own)
        await it.pilot.press("f3")
        ring = ["short", "greedy", "precise", "balanced", "creative", "default", "own"]
        for key, names in (("right", ring), ("left", [*ring[-2::-1], "own"])):
            for name in names:
                values = (30, ("END",)) if name == "short" else (500, ())
                assert await turned(it, key) == (name, *values)
            assert active.chat.params == own


@run
async def test_a_value_that_is_changed_on_top_of_a_preset_is_the_chats_own(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    saved(tmp_path, SHORT)
    async with bench((100, 40)) as it:
        await it.pilot.press("f3")
        row(it, "preset")
        await it.pilot.press("right")
        assert it.drawer.knobs.preset == "short"
        row(it, "max_tokens")
        await it.pilot.press(*"99", "enter")
        assert it.drawer.knobs.preset == "own"
        assert await turned(it) == ("short", 30, ("END",))
        assert await turned(it, "left") == ("own", 99, ("END",))
        assert await turned(it, "left") == ("default", 99, ("END",))
        row(it, "max_tokens")
        await it.pilot.press(*"64", "enter")
        assert it.drawer.knobs.preset == "default"
        assert (await turned(it))[:2] == ("own", 64)


@run
async def test_a_chat_has_its_own_values_back_after_a_restart(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    saved(tmp_path, SHORT)
    async with bench((100, 40)) as it:
        it.app.chats.active.tune(SamplingParams(temperature=0.7, top_k=40, max_tokens=500))
        await it.pilot.press("f3")
        assert await turned(it) == ("short", 30, ("END",))
        await it.pilot.press("escape")
        await it.answered(await it.say("hello"))
    async with bench((100, 40)) as it:
        await it.pilot.press("f3")
        assert await turned(it) == ("greedy", 500, ())


@run
async def test_no_preset_is_passed_over_that_has_the_same_values_as_another(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    """It would be shown as the other one, from where the arrows would go on."""
    saved(tmp_path, "[mine]\ntemperature = 0.0\nmax_tokens = 20\n\n" + SHORT)
    async with bench((100, 40)) as it:
        await it.pilot.press("f3")
        row(it, "max_tokens")
        await it.pilot.press(*"20", "enter")
        names = [(await turned(it))[0] for _ in range(7)]
        assert names == ["mine", "short", "precise", "balanced", "creative", "default", "mine"]
