"""A message in the transcript: header, reasoning (folded or not), text, and how it ended."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from minichat.chats.model import Message
from minichat.models import progress
from minichat.plural import plural
from minichat.ui.monitor.figures import day, duration, token_rate
from minichat.ui.transcript.glyphs import drawable, one_line
from minichat.ui.transcript.markdown.canvas import Canvas
from minichat.ui.transcript.markdown.cells import cell_width, clip, wrap
from minichat.ui.transcript.markdown.document import Document, Enough, estimate
from minichat.ui.transcript.markdown.draw import draw
from minichat.ui.transcript.markdown.leaves import Leaf
from minichat.ui.transcript.markdown.rows import Fragment, Look, RenderedLeaf, Row

_THOUGHT: Look = ("thought",)


def _last_only(label: str, cut: str) -> str:
    """A label that names changed settings, with the last ones only; empty for any other."""
    _, then, last = label.rpartition(", then ")
    return f"{cut}{then}{last}" if then else ""


class EntryPart(IntEnum):
    """The parts of an entry, from top to bottom."""

    HEAD = 0
    FOLD = 1
    THOUGHT = 2
    BODY = 3
    TAIL = 4
    COMING = 5
    NOTE = 6
    SPACE = 7


class Spot(NamedTuple):
    """A line of an entry."""

    part: EntryPart
    leaf: int
    row: int


@dataclass(slots=True)
class Thought:
    """Reasoning before the text, and its duration if it was streamed here."""

    document: Document
    seconds: float | None = None
    unfolded: bool = False


class Entry:
    """Parsed when it comes into view; until then its height is estimated."""

    marked = False  # keys act on this message
    whole = False  # all of its reply streams here: a reply that goes on may have thought before
    newest = False  # a retry of an earlier one would remove what follows; its menu offers that
    body: Document | None = None
    thought: Thought | None = None
    taken = ""  # "preempted" or "swapped" while the engine has taken the reply's blocks
    _thinking_since: float | None = None
    _thought_for: float | None = None
    _tail = ""
    _reasoning = False  # the tail is reasoning
    _tail_leaf: Leaf | None = None
    _note: RenderedLeaf | None = None
    _note_form = 0, ""  # its width, and how it offers a retry

    def __init__(self, message: Message, serial: int, letter: str, canvas: Canvas) -> None:
        self.message = message
        self.serial = serial
        self.letter = letter
        self._canvas = canvas
        self._lines = message.text.count("\n")
        self._searching = (message.params or {}).get("beams", 1) > 1  # with beams, as long as it runs

    @property
    def retriable(self) -> bool:
        return self.newest and self.message.retriable and bool(self._canvas.retries)

    @property
    def text(self) -> str:
        return self.body.text if self.body is not None else self.message.text

    @property
    def _doing(self) -> str:
        """What a running reply does, in a word."""
        if not self.text and not self._tail:
            return "waiting"
        if self.taken:
            return self.taken
        if self._searching:
            return "searching"  # long after the text is there, if other hypotheses may be better
        return "thinking" if self._reasoning and not self.text else "writing"

    # Growing

    def open(self, enough: Enough) -> Document:
        """Parse the text as far as the time budget allows."""
        if self.body is None:
            self.body = Document(self._canvas, plain=self.message.role == "user")
            self.body.feed(self.message.text, enough)
            self._think(self.message.reasoning)
        return self.body

    def extend(
        self,
        text: str,
        tail: str,
        now: float,
        enough: Enough,
        *,
        reasoning: bool = False,
        beams: bool = False,
    ) -> int:
        """Add streamed text. Return the first line of the entry that changed.

        `beams`: whether the reply is searched with beams now.
        """
        body = self.open(lambda: False)
        body.growing = True
        if self.whole and reasoning and not text and not body.text and self._thinking_since is None:
            self._thinking_since = now
        if self._thinking_since is not None and text and self._thought_for is None:
            self._thought_for = now - self._thinking_since
        doing = self._doing
        self._tail, self._reasoning, self._searching = tail, reasoning, beams
        line, self._tail_leaf = body.extend(text, tail, enough)
        return 0 if self._doing != doing else self.part_top(EntryPart.BODY) + line

    def settle(self, message: Message, enough: Enough) -> bool:
        """Take over the finished message. Return whether its text equals the streamed text."""
        same = self.body is not None and self.body.text == message.text
        self.message, self._note = message, None
        self._lines = message.text.count("\n")
        self._tail, self._tail_leaf = "", None
        if self.body is not None and same:
            self.body.growing = False
            self.body.set_tail("")
        else:
            self.body = None
        self._think(message.reasoning)
        self.open(enough)
        return same

    def _think(self, reasoning: str) -> None:
        if reasoning and self.thought is None:
            document = Document(self._canvas, _THOUGHT)
            document.feed(reasoning, lambda: True)
            unfolded = self.message.id in self._canvas.unfolded
            self.thought = Thought(document, self._thought_for, unfolded)

    @property
    def behind(self) -> int:
        """The number of characters not parsed yet."""
        thought = self.thought.document.behind if self.thought and self.thought.unfolded else 0
        return thought + (self.body.behind if self.body is not None else 0)

    def catch_up(self, enough: Enough) -> bool:
        documents = [self.body, self.thought.document if self.thought and self.thought.unfolded else None]
        return all(document.catch_up(enough) for document in documents if document is not None)

    def toggle(self) -> None:
        if self.thought is not None:
            self.thought.unfolded = not self.thought.unfolded
            kept = self._canvas.unfolded
            (kept.add if self.thought.unfolded else kept.discard)(self.message.id)

    # Measuring

    @property
    def height(self) -> int:
        if self.body is None:  # called for thousands of entries at once
            message = self.message
            lines = estimate(len(message.text), self._lines, self._canvas.width) if message.text else 0
            return 2 + lines + bool(message.reasoning) + (message.state in ("failed", "stopped"))
        return sum(height for _, height in self.parts())

    def parts(self) -> Iterator[tuple[EntryPart, int]]:
        """The parts that are present, with their heights."""
        yield EntryPart.HEAD, 1
        if self.thought is not None or self.message.reasoning:
            yield EntryPart.FOLD, 1
        if self.thought is not None and self.thought.unfolded:
            yield EntryPart.THOUGHT, self.thought.document.known
        if self.body is None:
            if self.message.text:
                yield EntryPart.BODY, estimate(len(self.message.text), self._lines, self._canvas.width)
        else:
            yield EntryPart.BODY, self.body.known
            if self._tail_leaf is not None:
                yield EntryPart.TAIL, len(self._rendered_tail().rows)
        if self.behind:
            yield EntryPart.COMING, 1 + estimate(self.behind, 0, self._canvas.width)
        if self.message.state in ("failed", "stopped"):
            yield EntryPart.NOTE, len(self.note().rows)
        yield EntryPart.SPACE, 1

    def part_top(self, target: EntryPart) -> int:
        top = 0
        for part, height in self.parts():
            if part >= target:
                return top
            top += height
        return top

    def resize(self) -> None:
        if self.body is not None:
            self.body.resize()
        if self.thought is not None:
            self.thought.document.resize()

    def measure(self, top: int, bottom: int) -> None:
        """Measure the exact heights between two lines of the entry."""
        for part, document in self.documents():
            above = self.part_top(part)
            document.measure(top - above, bottom - above)

    def documents(self) -> list[tuple[EntryPart, Document]]:
        shown = [(EntryPart.THOUGHT, self.thought.document)] if self.thought and self.thought.unfolded else []
        return [*shown, (EntryPart.BODY, self.body)] if self.body is not None else shown

    def document(self, part: EntryPart) -> Document | None:
        return next((document for each, document in self.documents() if each == part), None)

    def spot(self, y: int) -> Spot:
        """The spot at line y of the entry."""
        for part, height in self.parts():
            if y < height:
                document = self.document(part)
                return Spot(part, *document.find(y)) if document is not None else Spot(part, 0, y)
            y -= height
        return Spot(EntryPart.SPACE, 0, 0)

    def line(self, spot: Spot) -> int:
        """The line of a spot."""
        top = self.part_top(spot.part)
        document = self.document(spot.part)
        if document is None or not document.leaves:
            return top + spot.row
        leaf = min(spot.leaf, len(document.leaves) - 1)
        return top + document.top(leaf) + min(spot.row, max(0, document.leaf_height(leaf) - 1))

    # Drawing

    def drawn(self, spot: Spot) -> RenderedLeaf:
        """The rows of the leaf that contains a spot; spot.row is an index into them."""
        document = self.document(spot.part)
        if document is not None and document.leaves:
            return document.sheet(min(spot.leaf, len(document.leaves) - 1)).drawn
        match spot.part:
            case EntryPart.HEAD:
                return RenderedLeaf("", (self._head(),))
            case EntryPart.FOLD:
                return RenderedLeaf("", (self._fold(),))
            case EntryPart.TAIL:
                return self._rendered_tail()
            case EntryPart.COMING:
                text = f"{self._canvas.glyphs.cut} loading {self.behind:,} characters"
                return RenderedLeaf("", (Row((Fragment(text, ("note",)),)),))
            case EntryPart.NOTE:
                return self.note()
            case _:
                return RenderedLeaf("", (Row(),))

    def _rendered_tail(self) -> RenderedLeaf:
        if (leaf := self._tail_leaf) is None:
            return RenderedLeaf("", ())
        return draw(leaf, self._canvas.width, self._canvas.glyphs, (), self._tail)

    def note(self) -> RenderedLeaf:
        """The note of a failed or stopped reply."""
        canvas = self._canvas
        form = _, offer = canvas.width, canvas.retries if self.retriable else ""
        if self._note is None or self._note_form != form:
            if self.message.state == "failed":
                source = f"{canvas.glyphs.fault} failed: {self.message.error or 'unknown reason'}"
                look: Look = ("fault",)
            else:
                reason = self.message.error
                source, look = f"stopped: {reason}" if reason else "stopped", ("note",)
            source = drawable(source.expandtabs(1))
            lines = [source[start:end] for start, end in wrap(source, canvas.width)]
            if offer:
                whole = f"{lines[-1]}  {offer}"
                lines[-1:] = [whole] if cell_width(whole) <= canvas.width else [lines[-1], offer]
            rows = tuple(Row((Fragment(line, look),)) for line in lines)
            self._note, self._note_form = RenderedLeaf("", rows), form
        return self._note

    def _head(self) -> Row:
        """Role, time and statistics: `| assistant a  12:01  greedy  38 tok/s ...`. No date means today."""
        message, glyphs, width = self.message, self._canvas.glyphs, self._canvas.width
        names = {
            "user": "you",
            "assistant": f"assistant {one_line(self.letter)}".rstrip(),
            "system": "system",
        }
        clock = time.strftime("%H:%M", time.localtime(message.at))
        details = [f"{day(message.at)} {clock}".lstrip()] if message.at else []
        if (stats := message.stats) and stats.tokens:
            details += [
                f"from message {stats.left_out + 1}" if stats.left_out else "",
                one_line(stats.strategy),
                token_rate(stats.rate) if stats.rate else "",  # one token has no rate
                f"waited {duration(stats.ttft)}" if stats.ttft else "",
                f"{stats.loaded:,} tok from {stats.tier}" if stats.loaded else "",
                f"saved {duration(stats.saved)}" if stats.saved else "",
            ]
            details += [
                f"{stats.tokens:,} tok",
                f"{stats.copied:,} copied" if stats.copied else "",
                f"{stats.blocks:,} blk" if stats.blocks else "",
            ]
        elif message.state == "streaming":
            details.append(self._doing)
        bar = ">" if self.marked else glyphs.bar
        name = clip(f"{bar} {names[message.role]}", width, glyphs.cut)
        rest = ""
        for detail in filter(None, details):  # complete or left out
            room = width - len(name) - len(rest) - 2
            forms = (each for each in (detail, _last_only(detail, glyphs.cut)) if cell_width(each) <= room)
            rest += f"  {form}" if (form := next(forms, "")) else ""
        look = ("head", message.role, "marked") if self.marked else ("head", message.role)
        return Row(tuple(each for each in (Fragment(name, look), Fragment(rest, ("note",))) if each.text))

    def _fold(self) -> Row:
        """The line that reasoning is folded to."""
        glyphs, thought = self._canvas.glyphs, self.thought
        unfolded = thought is not None and thought.unfolded
        parts = [f"{glyphs.open if unfolded else glyphs.folded} thought"]
        if thought is not None and thought.seconds is not None:
            seconds = progress.duration(thought.seconds) if thought.seconds >= 1 else "less than 1 s"
            parts.append(f"for {seconds},")
        words = len(self.message.reasoning.split()) if len(self.message.reasoning) < 50_000 else 0
        parts.append(plural(words, "word") if words else f"{len(self.message.reasoning):,} characters")
        if self._canvas.unfolds:
            parts.append(f" {self._canvas.unfolds} to {'hide' if unfolded else 'show'}")
        return Row((Fragment(clip(" ".join(parts), self._canvas.width, glyphs.cut), _THOUGHT),))
