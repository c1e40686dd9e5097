"""A third-party package adds a feature to the screen: a drawer with its own key, help and CSS."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minichat.features import BUILT_IN, installed
from minichat.features.feature import Context, Feature, ScreenCommand
from tests.app.configured import configured
from tests.app.conftest import run, snapshot

MODULE = Path(__file__).parents[2] / "extending" / "screen" / "minichat_fullness.py"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder with one package in it."""
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(MODULE, folder)
    monkeypatch.syspath_prepend(folder)
    install(folder, "fullness", "minichat_fullness:FULLNESS")
    return folder


def install(site: Path, name: str, value: str) -> None:
    """Write an entry point as pip does."""
    facts = site / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[minichat.features]\n{name} = {value}\n")


def panel(it: Any) -> Any:
    return it.main.query_one("Fullness")


@run
async def test_its_key_opens_it_and_it_gets_snapshots_only_while_open(
    bench: Callable[..., Any], site: Path
) -> None:
    async with bench((100, 30)) as it:
        await it.until(lambda: it.main.engine.latest)
        it.main.show_snapshot(snapshot(running=tuple(range(16))))
        assert not panel(it).display and panel(it).largest == 0
        assert "fullness" in it.screen_text(), "the key bar shows its key"
        await it.pilot.press("f9")
        await it.until(lambda: panel(it).has_focus)
        assert panel(it).largest == 0.5, "it gets the newest snapshot at once"
        await it.until(lambda: "50.0% at most" in it.screen_text())
        await it.pilot.press("r")
        it.main.show_snapshot(snapshot(running=tuple(range(8))))
        assert panel(it).largest == 0.25
        await it.pilot.press("f3")
        assert not panel(it).display, "one drawer at a time"
        it.main.show_snapshot(snapshot(running=tuple(range(16))))
        assert panel(it).largest == 0.25
        await it.pilot.press("escape")
        await it.until(lambda: it.main.prompt.has_focus)


@run
async def test_help_and_palette_list_it(bench: Callable[..., Any], site: Path) -> None:
    async with bench((100, 160)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "In the fullness drawer" in it.screen_text())
        lines = [" ".join(line.split()) for line in it.screen_text().splitlines()]
        assert any("F9 How full the cache has been" in line for line in lines)
        assert any("r forget the largest share" in line for line in lines)
        await it.pilot.press("f1", "ctrl+p", *"how full", "enter")
        await it.until(lambda: panel(it).display)


@run
async def test_the_settings_remap_its_keys(bench: Callable[..., Any], site: Path, tmp_path: Path) -> None:
    configured(tmp_path, '[keys]\n"view.fullness" = "f10"\n"fullness.forget" = "x"\n')
    async with bench((100, 30)) as it:
        assert it.notices() == []
        await it.pilot.press("f9")
        assert not panel(it).display
        await it.pilot.press("f10")
        await it.until(lambda: panel(it).has_focus)
        panel(it).largest = 1.0
        await it.pilot.press("x")
        assert panel(it).largest == 0


@run
async def test_nothing_of_it_appears_without_the_package(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        assert not it.main.query("Fullness")
        await it.pilot.press("f9")
        assert it.app.context.features == BUILT_IN


def nothing(context: Context) -> None:
    """A no-op command."""


def feature(name: str = "mine", id: str = "mine.do", keys: str = "", css: str = "") -> Feature:
    return Feature(name=name, title=name, commands=(ScreenCommand(id, "View", name, nothing, keys),), css=css)


OURS = "from tests.app.program.test_features import feature\nFEATURE = "
STYLED = f"{OURS}feature('misfit', css={{!r}})"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "raise OSError('no such device')",
            "Cannot load the feature misfit (misfit:FEATURE): no such device",
        ),
        ("FEATURE = 7", "was skipped: it is 'int', not a Feature"),
        (f"{OURS}feature('monitor')", "another feature is named 'monitor'"),
        (f"{OURS}feature(id='chat.new')", "the command 'chat.new' already exists"),
        (f"{OURS}feature(keys='f3')", "its key 'f3' is already bound to view.decoding"),
        (STYLED.format("Mine { colour: red }"), "invalid CSS in the feature misfit at 'colour:'"),
        (STYLED.format("Mine { color red"), "invalid CSS in the feature misfit: Expected"),
    ],
)
@run
async def test_an_invalid_feature_is_reported_and_the_screen_still_starts(
    bench: Callable[..., Any], site: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    (site / "misfit.py").write_text(code)
    monkeypatch.delitem(sys.modules, "misfit", raising=False)
    install(site, "misfit", "misfit:FEATURE")
    async with bench((100, 30)) as it:
        await it.until(lambda: any("misfit" in notice and why in notice for notice in it.notices()))
        await it.answered(await it.say("hello"))
        await it.pilot.press("f9")
        await it.until(lambda: panel(it).display), "the one that fits is there"


def fails(_: Context) -> None:
    raise RecursionError("deeper and deeper")


@run
async def test_a_command_that_fails_again_says_so_again(bench: Callable[..., Any]) -> None:
    mine = Feature(
        name="mine", title="mine", commands=(ScreenCommand("mine.do", "View", "mine", fails, "f9"),)
    )
    async with bench((100, 30), features=(*BUILT_IN, mine)) as it:
        for times in (1, 2):
            await it.pilot.press("f9")
            await it.until(lambda: len(it.notices()) == times)  # noqa: B023
            it.app.clear_notifications()  # a visible notice is not repeated
        assert all("failed: RecursionError: deeper and deeper" in each for each in it.notices())
        it.failures.clear()


def test_the_docs_show_this_feature(root: Path) -> None:
    page = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    assert f"```python\n{MODULE.read_text(encoding='utf-8')}```\n" in page, "docs/extending.md differs"


def test_third_party_features_come_after_the_built_in_ones(site: Path) -> None:
    found, problems = installed()
    assert [each.name for each in found] == [*(each.name for each in BUILT_IN), "fullness"]
    assert problems == ()


@run
async def test_a_disabled_command_is_neither_offered_nor_run(bench: Callable[..., Any]) -> None:
    done = []
    command = ScreenCommand(
        "mine.do",
        "View",
        "Do what is mine",
        lambda _: done.append(1),
        "f9",
        enabled=lambda context: context.chats.active.streaming,
    )
    mine = Feature(name="mine", title="mine", commands=(command,))
    async with bench((100, 30), features=(*BUILT_IN, mine)) as it:
        await it.pilot.press("f9")
        await it.pilot.press("ctrl+p", *"what is mine")
        await it.until(lambda: "No command matches" in it.screen_text())
        await it.pilot.press("escape")
        reply = await it.say("hello")
        await it.pilot.press("f9")
        await it.until(lambda: done == [1])
        await it.answered(reply)
