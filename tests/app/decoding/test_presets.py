"""Sampling presets are saved, chosen and deleted."""

from collections.abc import Callable
from typing import Any

from engine.api.params import Grammar, SamplingParams
from minichat.settings.presets import delete_preset, load_presets, save_preset
from tests.app.conftest import run
from tests.app.decoding.test_decoding import row


@run
async def test_a_preset_is_saved_and_chosen(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        assert it.drawer.knobs.preset == "default"
        await it.pilot.press("ctrl+s", *"mine", "enter")
        await it.until(lambda: "mine" in load_presets(it.app.paths.presets).own)
        await it.until(lambda: "preset       ‹ mine ›" in it.screen_text())
        await it.until(lambda: "Delete deletes" in it.screen_text())
        await it.pilot.press("right")
        await it.until(lambda: it.app.chats.active.chat.params.greedy)
        await it.until(lambda: "Left or Right chooses" in it.screen_text())
        assert "Delete deletes" not in it.screen_text(), "built-in presets cannot be deleted"
        await it.pilot.press("left")
        await it.until(lambda: it.app.chats.active.chat.params.temperature == 0.7)


@run
async def test_presets_with_the_same_values_do_not_stop_the_arrows(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        for name in ("first", "second"):
            await it.pilot.press("ctrl+s", *name, "enter")
            await it.until(lambda name=name: name in load_presets(it.app.paths.presets).own)
        await it.until(lambda: "preset       ‹ first ›" in it.screen_text())
        await it.pilot.press("right")
        await it.until(lambda: "preset       ‹ greedy ›" in it.screen_text())
        await it.pilot.press("left")
        await it.until(lambda: "preset       ‹ first ›" in it.screen_text())
        await it.pilot.press("shift+right")
        await it.until(lambda: "preset       ‹ greedy ›" in it.screen_text())


@run
async def test_a_saved_preset_is_deleted(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        own = load_presets(it.app.paths.presets).own
        await it.pilot.press("f3", "delete")
        await it.until(lambda: any("You have no presets" in each for each in it.notices()))
        for name in ("mine", "other"):
            await it.pilot.press("ctrl+s", *name, "enter")
            await it.until(lambda name=name: name in load_presets(it.app.paths.presets).own)
        await it.pilot.press("delete")
        await it.until(lambda: "Delete a preset permanently" in it.screen_text())
        assert "greedy" not in it.screen_text().split("Delete a preset permanently")[1].split("Enter take")[0]
        await it.pilot.press("escape")
        await it.until(lambda: it.app.focused is it.drawer.knobs)
        assert list(load_presets(it.app.paths.presets).own) == ["mine", "other"]
        await it.pilot.press("delete", "down", "enter")
        await it.until(lambda: list(load_presets(it.app.paths.presets).own) == ["mine"])
        assert [each.name for each in it.app.presets.all][:2] == ["mine", "greedy"] and not own
        await it.pilot.press("escape", "ctrl+p", *"delete a dec", "enter")
        await it.until(lambda: "Delete a preset permanently" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: load_presets(it.app.paths.presets).own == {})


@run
async def test_presets_that_another_screen_saved_or_deleted(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3", "ctrl+s", *"mine", "enter")
        await it.until(lambda: "preset       ‹ mine ›" in it.screen_text())
        delete_preset(it.app.paths.presets, "mine")
        await it.pilot.press("delete")
        await it.until(lambda: any("You have no presets" in each for each in it.notices()))
        await it.until(lambda: "‹ mine ›" not in it.screen_text())
        save_preset(it.app.paths.presets, "theirs", SamplingParams(temperature=0.1))
        await it.pilot.press("ctrl+s", *"theirs", "enter")
        await it.until(lambda: "Replaced the preset theirs" in it.notices())


@run
async def test_a_value_being_typed_is_saved_too(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        row(it, "presence_penalty")
        await it.pilot.press(*"1.5", "ctrl+s", *"mine", "enter")
        await it.until(lambda: "mine" in load_presets(it.app.paths.presets).own)
        await it.until(lambda: it.app.chats.active.chat.params.presence_penalty == 1.5)
        assert load_presets(it.app.paths.presets).own["mine"].presence_penalty == 1.5
        await it.pilot.press(*"70", "ctrl+s")
        await it.until(lambda: "presence: must be" in it.screen_text())
        assert "as a preset named" not in it.screen_text()


@run
async def test_a_blank_name_is_refused(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3", "ctrl+s", "space", "enter")
        await it.until(lambda: "A preset's name cannot be blank" in it.notices())
        await it.pilot.press(*"mine", "enter")
        await it.until(lambda: "Saved the preset mine" in it.notices())


@run
async def test_a_name_that_is_taken_is_refused_or_replaced(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("f3", "ctrl+s", *"own", "enter")
        await it.until(lambda: any("choose another name" in each for each in it.notices()))
        await it.until(lambda: "as a preset named" in it.screen_text())
        await it.pilot.press(*"er", "enter")
        await it.until(lambda: "Saved the preset owner" in it.notices())
        for name in ("owner", "greedy"):
            await it.pilot.press("ctrl+s", *name, "enter")
            await it.until(lambda name=name: f"Replaced the preset {name}" in it.notices())


@run
async def test_a_preset_that_a_grammar_forbids_is_passed_over(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), params=SamplingParams(grammar=Grammar("regex", "[ab]+"))) as it:
        it.app.presets.save("a search", SamplingParams(beams=4))
        await it.pilot.press("f3")
        row(it, "preset")
        await it.until(lambda: "preset       ‹ default ›" in it.screen_text())
        for key, then in (("right", "greedy"), ("left", "default")):
            await it.pilot.press(key)
            await it.until(lambda then=then: f"preset       ‹ {then} ›" in it.screen_text())
            assert it.drawer.knobs.trouble.startswith("a search was passed over: grammar: cannot be comb")
        await it.pilot.press("left")
        await it.until(lambda: "preset       ‹ creative ›" in it.screen_text())
        assert not it.drawer.knobs.trouble
        assert it.app.chats.active.chat.params.grammar is not None
