"""Incremental separation of a reply's reasoning from its answer."""

OPEN, CLOSE = "<think>", "</think>"


class Thoughts:
    """Splits a reply: text from <think> to </think> at the start is reasoning, all else is the answer.

    Returned text is final, so the result does not depend on how the input was cut into pieces.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._state = self._thinking if opened else self._begin  # opened: the prompt ends in <think>
        self._held = ""
        self._lead = True  # skip blank lines before the first word

    @property
    def thinking(self) -> bool:
        """Whether the current text is reasoning."""
        return self._state == self._thinking

    def push(self, text: str) -> tuple[str, str]:
        """Add text. Returns the new reasoning and the new answer text."""
        self._held += text
        return self._state()

    def flush(self) -> tuple[str, str]:
        """End the reply. Returns the text that was held back."""
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
        thought, self._held = self._held[:sure], self._held[sure:]
        return thought, ""

    def _answer(self) -> tuple[str, str]:
        text, self._held = self._held, ""
        if self._lead:
            text = text.lstrip("\n")
            self._lead = not text
        return "", text


def overlap(text: str, word: str) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of `word`."""
    most = min(len(text), len(word) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(word[:n])), 0)
