"""The interface between the stages of a pipeline, inside a step."""

from typing import Protocol

from torch import Tensor


class StageLink(Protocol):
    """Moves the residual stream of a step's tokens. Steps pass in the order of their launch.

    A model that is not split into stages has none.
    """

    first: bool  # whether this stage embeds the tokens
    last: bool  # whether it samples

    def blank(self, tokens: int) -> Tensor:
        """A stream of zeros, with the shape of what `receive` returns."""

    def receive(self, tokens: int) -> Tensor:
        """Return the stream from the stage before this one. The caller may overwrite it."""

    def send(self, stream: Tensor) -> None:
        """Send the stream to the next stage, which may be busy: this does not wait for it."""
