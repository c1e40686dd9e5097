"""Heights of the items of a long column, with fast lookup by line."""

from bisect import bisect_right
from collections.abc import Iterable


class Heights:
    """A list of heights and their prefix sums, updated lazily from the first change on."""

    def __init__(self, heights: Iterable[int] = ()) -> None:
        self._heights = list(heights)
        self._tops = [0]  # tops[i] is the sum of the first i; truncated at the first change

    def __len__(self) -> int:
        return len(self._heights)

    def __getitem__(self, index: int) -> int:
        return self._heights[index]

    def __setitem__(self, index: int, height: int) -> None:
        if self._heights[index] != height:
            self._heights[index] = height
            del self._tops[index + 1 :]

    def append(self, height: int) -> None:
        self._heights.append(height)

    def truncate(self, length: int) -> None:
        del self._heights[length:]
        del self._tops[length + 1 :]

    def prepend(self, heights: Iterable[int]) -> None:
        self._heights[:0] = heights
        self._tops = [0]

    @property
    def total(self) -> int:
        return self.top(len(self._heights))

    def top(self, index: int) -> int:
        """The first line of an item."""
        tops = self._tops
        if index >= len(tops):
            running = tops[-1]
            for height in self._heights[len(tops) - 1 : index]:
                running += height
                tops.append(running)
        return tops[index]

    def find(self, y: int) -> tuple[int, int]:
        """The item at line y, and the line within it. Beyond the ends: the first or the last."""
        if y < 0 or not self._heights:
            return 0, 0
        if y >= self.total:
            last = len(self._heights) - 1
            return last, max(0, self._heights[last] - 1)
        index = bisect_right(self._tops, y) - 1
        return index, y - self._tops[index]
