"""A line above everything, only while there is something to say: a model loads, an engine died."""

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from minichat.ui.marks import UNICODE, Marks
from minichat.ui.transcript.glyphs import drawable

_BAR = 12  # cells


class Banner(Static):
    """Hidden without a text. What is wrong may take some lines: somebody has to read all of it."""

    fault: reactive[bool] = reactive(False)
    marks: Marks = UNICODE

    def say(self, text: str, share: float | None = None, *, fault: bool = False) -> None:
        bar = ""
        if share is not None:
            full = round(min(max(share, 0.0), 1.0) * _BAR)
            bar = f"  {self.marks.bar * full}{self.marks.rest * (_BAR - full)} {share:4.0%}"
        line = drawable(" ".join(text.splitlines()))
        self.set_class(fault, "-fault")
        self.update(Content(f" {line}{bar}"), layout=fault)
        self.display = bool(text)
