"""A text's leaves with their heights: measured where shown, estimated elsewhere."""

from collections.abc import Callable

from minichat.ui.transcript.markdown.canvas import Canvas, Sheet
from minichat.ui.transcript.markdown.draw import last_row_at
from minichat.ui.transcript.markdown.heights import Heights
from minichat.ui.transcript.markdown.leaves import Leaf
from minichat.ui.transcript.markdown.rows import Look
from minichat.ui.transcript.markdown.splitter import Splitter

Enough = Callable[[], bool]


def estimate(length: int, newlines: int, width: int) -> int:
    """Estimate the number of lines of a text."""
    return 1 + newlines + length // (width + 1)


class Document:
    """The leaves of a text that can grow at its end."""

    def __init__(self, canvas: Canvas, base: Look = (), *, plain: bool = False) -> None:
        self._canvas = canvas
        self._base = base
        self._splitter = Splitter(plain=plain, row_begins=self._row_begins)
        self._heights = Heights()
        self._measured: list[bool] = []
        self._tail = ""
        self.growing = False  # the text is still streaming

    @property
    def text(self) -> str:
        return self._splitter.text

    @property
    def leaves(self) -> list[Leaf]:
        return self._splitter.leaves

    @property
    def behind(self) -> int:
        return self._splitter.behind

    @property
    def height(self) -> int:
        """Height in lines, including an estimate for text not split yet."""
        behind = self._splitter.behind
        return self._heights.total + (estimate(behind, 0, self._canvas.width) if behind else 0)

    @property
    def known(self) -> int:
        """Height in lines of the text that has been split."""
        return self._heights.total

    def feed(self, text: str, enough: Enough) -> None:
        self._splitter.feed(text)
        self.catch_up(enough)

    def extend(self, text: str, tail: str, enough: Enough) -> tuple[int, Leaf | None]:
        """Add streamed text and a tail. Return the first changed line, and a leaf for the tail if needed."""
        first = self._splitter.settled_leaves
        before = self.sheet(first).drawn.rows if first < len(self.leaves) else ()
        if text:
            self.feed(text, enough)
        leaf = self.set_tail(tail)
        if first >= len(self.leaves):
            return self._heights.total, leaf
        after = self.sheet(first).drawn.rows
        same = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None)
        return self._heights.top(first) + (min(len(before), len(after)) if same is None else same), leaf

    def catch_up(self, enough: Enough = lambda: False) -> bool:
        """Split more of the text. Return whether all of it is split."""
        if not self._splitter.behind:
            return True
        first = self._splitter.settled_leaves
        for leaf in self.leaves[first:]:
            self._canvas.drop(leaf)
        done = self._splitter.advance(enough)
        self._guess(first)
        return done

    def _guess(self, first: int) -> None:
        """Estimate the heights from leaf `first` on."""
        self._heights.truncate(first)
        del self._measured[first:]
        width = self._canvas.width
        for leaf in self.leaves[first:]:
            self._heights.append(_lines_of(leaf, width))
            self._measured.append(False)

    def resize(self) -> None:
        """Estimate again after the canvas's width has changed."""
        if self._splitter.split_at_row:
            before = self._splitter
            self._splitter = Splitter(before.text, plain=before.plain, row_begins=self._row_begins)
            self._splitter.advance()
        self._guess(0)

    def _row_begins(self, leaf: Leaf) -> int:
        return last_row_at(leaf, self._canvas.width, self._canvas.glyphs)

    def sheet(self, index: int) -> Sheet:
        leaf = self.leaves[index]
        if leaf is self._splitter.open:
            return self._canvas.sheet(leaf, self._base, self._tail, self.growing)
        return self._canvas.sheet(leaf, self._base)

    def set_tail(self, tail: str) -> Leaf | None:
        """Show provisional text after the end. Return a leaf for it if it cannot extend the last one."""
        leaf = self._splitter.open
        extends = leaf is not None and leaf.kind in ("text", "code")
        ended = self.text[-1:]
        if extends and tail and ended in ("\n", " "):
            joint = "\n" if leaf is not None and leaf.kind == "code" and ended == "\n" else " "
            tail = joint + tail.lstrip(" ")
        inline = tail if extends else ""
        if inline != self._tail:
            self._tail = inline
            if self._measured:
                self._measured[-1] = False
        if not tail or extends:
            return None
        return Leaf(
            "text", len(self.text), len(self.text), gap=bool(self.leaves) and self.text.endswith("\n\n")
        )

    def measure(self, top: int, bottom: int) -> None:
        """Measure the exact heights of the leaves between two lines."""
        if not self._measured or bottom <= 0:
            return
        index = self._heights.find(top)[0]
        while index < len(self._measured) and self._heights.top(index) < bottom:
            if not self._measured[index]:
                self.measure_leaf(index)
            index += 1

    def measure_leaf(self, index: int) -> None:
        self._heights[index] = len(self.sheet(index).drawn.rows)
        self._measured[index] = True

    def find(self, y: int) -> tuple[int, int]:
        return self._heights.find(y)

    def top(self, index: int) -> int:
        return self._heights.top(index)

    def leaf_height(self, index: int) -> int:
        return self._heights[index]

    def leaf_at(self, offset: int) -> int:
        """The leaf that contains an offset of the text, or the one before it."""
        low, high = 0, len(self.leaves)
        while low < high:
            middle = (low + high) // 2
            if self.leaves[middle].start <= offset:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)


def _lines_of(leaf: Leaf, width: int) -> int:
    rows = leaf.text.count("\n")
    if leaf.kind == "code":
        return rows + bool(leaf.info and not leaf.joined) + leaf.gap + (not leaf.text)
    if leaf.kind == "table":
        return rows + 1 + (not leaf.joined) + leaf.gap
    if leaf.kind == "plain":
        return estimate(len(leaf.text), rows, width)
    return 1 + len(leaf.text) // max(1, width - 2 * len(leaf.containers)) + leaf.gap
