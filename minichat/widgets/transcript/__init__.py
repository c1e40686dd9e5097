"""A chat's messages on the screen."""

from minichat.widgets.transcript.glyphs import ASCII, UNICODE, Glyphs
from minichat.widgets.transcript.widget import Transcript

__all__ = ["ASCII", "UNICODE", "Glyphs", "Transcript"]
