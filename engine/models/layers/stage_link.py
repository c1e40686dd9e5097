"""The interface between the stages of a pipeline, inside a step."""

from typing import Protocol

from torch import Tensor


class StageLink(Protocol):
    """Moves the residual stream of a step's tokens. Steps pass in the order of their launch.

    A model that is not split into stages has none.
    """

    stages: int
    first: bool  # whether this stage embeds the tokens
    last: bool  # whether it samples

    def blank(self, tokens: int) -> Tensor:
        """A stream of zeros, with the shape of what `receive` returns."""

    def receive(self, tokens: int) -> Tensor:
        """Return the stream from the stage before this one. The caller may overwrite it."""

    def send(self, stream: Tensor) -> None:
        """Send the stream to the next stage, which may be busy: this does not wait for it."""


class StageEnds:
    """Where a step enters this stage, and where it leaves it. Without a link, there is only one stage."""

    def __init__(self, link: StageLink | None) -> None:
        self._link, self.stages = link, 1 if link is None else link.stages
        self.samples = link is None or link.last
        self._embeds = link is None or link.first

    def blank(self, tokens: int) -> Tensor | None:
        """A stream that a step can read until the real one arrives; None if tokens are embedded here."""
        return None if self._link is None or self._embeds else self._link.blank(tokens)

    def enter(self, tokens: int, into: Tensor | None = None) -> Tensor | None:
        """Return the stream from the stage before, also in the front of `into`; None: there is none."""
        if self._link is None or self._embeds:
            return None
        stream = self._link.receive(tokens)
        if into is not None:
            into[:tokens].copy_(stream)
        return stream

    def leave(self, stream: Tensor) -> bool:
        """Send the stream to the next stage. False if this is the last one."""
        if self._link is None or self.samples:
            return False
        self._link.send(stream)
        return True
