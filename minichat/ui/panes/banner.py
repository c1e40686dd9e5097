"""A banner at the top, shown only when needed: a model is loading, or the engine failed."""

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from minichat.ui.marks import UNICODE, Marks
from minichat.ui.transcript.glyphs import drawable

_BAR = 12  # cells


class Banner(Static):
    """Hidden without text. An error may take several lines, so that all of it is readable."""

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
