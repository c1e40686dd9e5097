"""An empty chat offers three example prompts that the current model can answer."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.events import Died
from engine.api.params import SamplingParams
from engine.host.thread import EngineThread
from engine.start import start
from minichat.clients.fake import FakeBackend
from minichat.models.welcome import things_to_try
from minichat.ui.transcript.greeting import Greeting
from tests.app.configured import configured
from tests.app.conftest import run, snapshot

LARGER = things_to_try("Qwen3-8B", template=True)
BUILT_IN = things_to_try("pocket", template=True)


@pytest.mark.parametrize(("model", "template"), [("pocket", True), ("tiny", True), ("tiny", False)])
@run
async def test_the_examples_match_the_model(bench: Callable[..., Any], model: str, template: bool) -> None:
    backend = FakeBackend([replace(snapshot(), model=model)], has_template=template)
    async with bench((80, 24), backend=backend) as it:
        for each in things_to_try(model, template=template):
            await it.until(lambda each=each: each in it.screen_text())
    assert len({*LARGER, *BUILT_IN, *things_to_try("tiny", template=False)}) == 9


@run
async def test_another_model_brings_other_examples(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.until(lambda: LARGER[0] in it.screen_text())
        assert "tiny is running" in it.main.found
        await it.app.lifecycle.switch("pocket")
        await it.until(lambda: BUILT_IN[0] in it.screen_text())
        assert "pocket is running" in it.main.found
        assert LARGER[0] not in it.screen_text()


@run
async def test_the_key_that_sends_and_shows_reasoning_is_named(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    configured(tmp_path, '[keys]\n"prompt.send" = "alt+enter"\n"prompt.newline" = "enter"\n')
    async with bench() as it:
        await it.until(lambda: "press Up, then Alt+Enter." in it.screen_text())
        await it.pilot.press("up", "alt+enter")
        await it.until(lambda: it.replies)
        await it.answered(it.replies[0], "<think>hm</think>yes")
        await it.until(lambda: "Alt+Enter to show" in it.screen_text())
        await it.pilot.press("alt+enter")
        await it.until(lambda: "Alt+Enter to hide" in it.screen_text())


@run
async def test_the_key_that_stops_is_named(bench: Callable[..., Any], tmp_path: Path) -> None:
    configured(tmp_path, '[keys]\n"reply.stop" = "f11"\n')
    async with bench() as it:
        reply = await it.say("hello")
        it.main.prompt.put("more")
        await it.pilot.press("enter")
        await it.until(lambda: any("Press F11 to stop" in each for each in it.notices()))
        it.main.prompt.put("")
        await it.answered(reply)
        await it.pilot.press("alt+e")
        await it.until(lambda: "F11 cancel" in it.screen_text())
        await it.pilot.press("f11")
        await it.until(lambda: "cancel" not in it.screen_text())


@run
async def test_up_selects_an_example_and_enter_sends_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.until(lambda: LARGER[0] in it.screen_text())
        for text in (LARGER[2], LARGER[1], LARGER[0]):
            await it.pilot.press("up")
            await it.until(lambda text=text: it.main.prompt.text == text)
        await it.pilot.press("up")
        assert it.main.prompt.text == LARGER[0]
        await it.pilot.press("down")
        await it.until(lambda: it.main.prompt.text == LARGER[1])
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"] == LARGER[1]
        await it.pilot.press("up")
        await it.until(lambda: it.main.prompt.text == LARGER[1])
        await it.pilot.press("up")
        assert it.main.prompt.text == LARGER[1], "once there are messages, only those are recalled"


@run
async def test_a_click_selects_an_example(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        await it.until(lambda: LARGER[1] in it.screen_text())
        y = next(y for y, line in enumerate(it.screen_text().splitlines()) if LARGER[1][:20] in line)
        await it.pilot.click(offset=(5, y))
        await it.until(lambda: it.main.prompt.text == LARGER[1])
        assert it.main.prompt.has_focus
        it.main.prompt.put("")
        await it.pilot.click(offset=(5, y + 3))
        assert it.main.prompt.text == ""


@pytest.mark.parametrize("width", [8, 40, 80])
def test_each_example_fits_on_its_line(width: int) -> None:
    greeting = Greeting(("above",), LARGER, ("below",))
    rows = [greeting.row(y, width, "…") for y in range(12)]
    assert all(row.width < width for row in rows)
    taken = [greeting.tried(y, width, "…") for y in range(-1, 12)]
    assert [each for each in taken if each] == list(LARGER)


# The replies of the built-in model to these examples and to those in the README


@pytest.fixture(scope="module")
def pocket() -> Iterator[Callable[[str], str]]:
    host = EngineThread(start(EngineConfig(model="pocket", device="cpu", threads=1)))

    def answer(text: str) -> str:
        reply = host.submit(
            [{"role": "user", "content": text}], SamplingParams(temperature=0, max_tokens=200)
        )
        return reply.result().text

    yield answer
    host.close()


@pytest.mark.soak
def test_the_built_in_model_answers_them(pocket: Callable[[str], str]) -> None:
    story, facts, order = map(pocket, BUILT_IN)
    assert "mouse" in story and len(story.split()) > 40
    assert "block" in facts and "don't know" not in facts
    assert json.loads(order) == {"name": "Anna", "age": 30, "city": "Rome"}


def test_it_answers_the_examples_in_the_readme(root: Path, pocket: Callable[[str], str]) -> None:
    block = re.search(r"## Use\n\n```\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if not re.search(r'--model .*"', line)]
    asked = [found[1] for line in lines if (found := re.search(r'(?:minichat|generate|echo) "(.+?)"', line))]
    assert len(asked) == 3
    for each in asked:
        assert not re.search(r"don't know|tiny demo model|can't", pocket(each)), each


@run
async def test_a_model_that_does_not_run_is_not_said_to(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()])
    async with bench(backend=backend) as it:

        def shown() -> str:
            return " ".join(it.screen_text().split())

        await it.until(lambda: "tiny is running" in shown())
        backend.loaded.clear()
        switched = asyncio.create_task(it.app.lifecycle.switch("pocket"))
        await it.until(lambda: "loading pocket" in shown())
        assert "is running" not in shown()
        backend.loaded.set()
        await switched
        await it.until(lambda: "pocket is running" in shown())
        backend.emit(Died(0, 0.0, "no reason"))
        await it.until(lambda: "no engine" in shown())
        assert "is running" not in shown()
