"""A reply's reasoning, told apart from its answer while both arrive in pieces."""

OPEN, CLOSE = "<think>", "</think>"


class Thoughts:
    """Text that begins with <think> is reasoning up to </think>; everything else is the answer.

    What is handed on is certain: pieces joined are the same however the text was cut.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._state = self._thinking if opened else self._begin  # opened: the prompt ends in <think>
        self._held = ""
        self._lead = True  # blank lines before the first word are not told

    @property
    def thinking(self) -> bool:
        """Whether it is reasoning that comes now."""
        return self._state == self._thinking

    def push(self, text: str) -> tuple[str, str]:
        """Takes what came; returns what it adds to the reasoning, and to the answer."""
        self._held += text
        return self._state()

    def flush(self) -> tuple[str, str]:
        """The end: what was held back is told."""
        held, self._held = self._held, ""
        return (held, "") if self.thinking else ("", held)

    def _begin(self) -> tuple[str, str]:
        start = self._held.lstrip()
        if len(start) < len(OPEN) and OPEN.startswith(start):
            return "", ""
        if not start.startswith(OPEN):
            self._state, self._lead = self._answer, False
            return self._answer()
        self._held = start.removeprefix(OPEN)
        self._state = self._thinking
        return self._thinking()

    def _thinking(self) -> tuple[str, str]:
        if self._lead:
            self._held = self._held.lstrip("\n")
            self._lead = not self._held
        thought, closed, rest = self._held.partition(CLOSE)
        if closed:
            self._state, self._lead, self._held = self._answer, True, rest
            return thought.rstrip("\n"), self._answer()[1]
        sure = len(self._held) - overlap(self._held, CLOSE)
        sure = len(self._held[:sure].rstrip("\n"))
        told, self._held = self._held[:sure], self._held[sure:]
        return told, ""

    def _answer(self) -> tuple[str, str]:
        told, self._held = self._held, ""
        if self._lead:
            told = told.lstrip("\n")
            self._lead = not told
        return "", told


def overlap(text: str, word: str) -> int:
    """How many of the last characters may be the beginning of the word."""
    most = min(len(text), len(word) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(word[:n])), 0)
