"""A prompt of many lines, in which typing stays quick."""

from collections.abc import Callable
from typing import Any

from textual.document._wrapped_document import WrappedDocument

from minichat.ui.panes.editor import Editor
from tests.app.conftest import run


class Counted(list[list[int]]):
    """Counts how often all of it is read."""

    def __init__(self, items: list[list[int]]) -> None:
        super().__init__(items)
        self.read = 0

    def __iter__(self) -> Any:
        self.read += 1
        return super().__iter__()


@run
async def test_a_key_does_not_read_every_line_for_each_that_it_draws(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        prompt = it.main.prompt
        prompt.put("\n".join(f"line {number}" for number in range(300)))
        wrapped = prompt.wrapped_document
        wrapped._wrap_offsets = counted = Counted(wrapped._wrap_offsets)
        await it.pilot.press("a")
        assert "line 299a" in it.screen_text()
        assert counted.read == 0


@run
async def test_its_height_is_textuals(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        prompt: Editor = it.main.prompt
        for text in ("", "a", "words " * 60, "one\ntwo\n" + "three " * 40):
            prompt.put(text)
            for key in ("x", "ctrl+j", "backspace", "ctrl+z"):
                await it.pilot.press(key)
                height = WrappedDocument.height.fget  # type: ignore[attr-defined]
                assert prompt.wrapped_document.height == height(prompt.wrapped_document)
