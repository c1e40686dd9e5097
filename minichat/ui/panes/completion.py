"""File name completion above the prompt, for names after an @."""

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from minichat.session.attachments import Offer
from minichat.ui.marks import UNICODE, Marks
from minichat.ui.transcript.glyphs import one_line

_ROWS = 6


class CompletionList(Widget):
    """Hidden while there are no completions. The prompt handles the keys."""

    offers: reactive[tuple[Offer, ...]] = reactive((), layout=False)
    chosen: reactive[int] = reactive(0)
    marks: Marks = UNICODE

    def show(self, offers: tuple[Offer, ...]) -> None:
        if offers != self.offers:
            self.offers, self.chosen = offers, 0
            self.styles.height = min(len(offers), _ROWS)
            self.display = bool(offers)

    def move(self, by: int) -> None:
        self.chosen = (self.chosen + by) % len(self.offers)

    @property
    def offer(self) -> Offer | None:
        return self.offers[self.chosen] if self.offers else None

    def render(self) -> Content:
        first = min(max(self.chosen - _ROWS + 1, 0), max(len(self.offers) - _ROWS, 0))
        rows = self.offers[first : first + _ROWS]
        return Content("\n").join(self._row(each, each is self.offer) for each in rows)

    def _row(self, offer: Offer, chosen: bool) -> Content:
        style = "bold $text on $panel" if chosen else "$text-primary" if offer.folder else "$text"
        mark = self.marks.pointer if chosen else " "
        return Content.styled(f" {mark} {one_line(offer.name)} ", style).truncate(self.size.width)
