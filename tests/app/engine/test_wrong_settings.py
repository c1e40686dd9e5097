"""A value of [engine] that the engine refuses: the screen names its line, and F5 reads the file again."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.errors import BadInput, EngineError, ModelNotFound
from minichat.clients.fake import FakeBackend
from minichat.features.leaving import RESTART
from minichat.start import Blame
from tests.app.configured import configured
from tests.app.conftest import run, snapshot

WRONG = BadInput("quantization 'int3': no scheme has that name")


def blame(error: EngineError) -> Blame:
    return Blame("quantization", "config.toml:2") if error is WRONG else Blame()


@run
@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        (
            Blame("policy", "config.toml:2"),
            BadInput("policy 'x' is"),
            "Correct config.toml:2 and press F5  |",
        ),
        (
            Blame("draft", option="--draft /x"),
            ModelNotFound("draft: there is no"),
            "Quit (^Q) and start without --draft /x  |",
        ),
        (
            Blame("draft", option="--draft mtp"),
            BadInput("draft: these have no"),
            "Quit (^Q) and start without --draft mtp; Alt+O chooses another model  |",
        ),
    ],
)
async def test_another_model_is_offered_only_if_it_may_help(
    bench: Callable[..., Any], found: Blame, error: EngineError, says: str
) -> None:
    async with bench(
        (160, 24), backend=FakeBackend([snapshot()], trouble=error), blame=lambda _: found
    ) as it:
        await it.until(lambda: f" {says}" in it.screen_text())


@run
async def test_a_wrong_setting_is_to_be_corrected_before_f5(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    file = configured(tmp_path, '[engine]\nquantization = "int3"\n')
    backend = FakeBackend([snapshot()], trouble=WRONG)
    backend.unloadable["tiny"] = WRONG
    async with bench((160, 24), backend=backend, blame=blame) as it:
        says = "Correct config.toml:2 and press F5; Alt+O chooses another model"
        await it.until(lambda: f"{says}  |  cannot load tiny: {WRONG}" in it.screen_text())
        await it.pilot.press("f5")
        await it.until(lambda: it.app.lifecycle.ready.is_set() and says in it.screen_text())
        assert it.app.return_code is None, "the file is as before"
        file.write_text('[engine]\nquantization = "int8"\n')
        await it.pilot.press("f5")
        await it.until(lambda: it.app.return_code == RESTART)


@run
@pytest.mark.parametrize("of_the_file", [True, False])
async def test_f5_restarts_the_program_once_the_engines_settings_are_edited(
    bench: Callable[..., Any], tmp_path: Path, of_the_file: bool
) -> None:
    """In place, the engine would start with what the file had before. A remote one does not use the file."""
    file = configured(tmp_path, "[engine]\nblocks = 64\n")
    backend = FakeBackend([snapshot()], trouble=EngineError("not enough memory"))
    backend.unloadable["tiny"] = EngineError("not enough memory")
    async with bench((160, 24), backend=backend, blame=blame if of_the_file else None) as it:
        await it.until(lambda: "F5 restarts the engine" in it.screen_text())
        file.write_text("[engine]\nblocks = 32\n")
        await it.pilot.press("f5")
        if of_the_file:
            await it.until(lambda: it.app.return_code == RESTART)
        else:
            await it.until(lambda: "F5 restarts the program" in it.screen_text())


@run
async def test_f5_restarts_the_program_once_code_was_edited(
    bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place, the engine would run what was imported before."""
    file = tmp_path / "own_policy.py"
    file.write_text("def rank(): raise ValueError\n")
    monkeypatch.setitem(sys.modules, "own_policy", SimpleNamespace(__file__=str(file)))
    os.utime(file, (1, 1))
    async with bench((160, 24)) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.app.lifecycle.stopped("ValueError")
        await it.until(lambda: "F5 restarts the engine" in it.screen_text())
        await it.pilot.press("f5")
        await it.until(lambda: it.app.lifecycle.alive)
        assert it.app.return_code is None
        it.app.lifecycle.stopped("ValueError")
        file.write_text("def rank(): return 0\n")
        await it.pilot.press("f5")
        await it.until(lambda: it.app.return_code == RESTART)
