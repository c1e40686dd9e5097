"""A chat's messages on the screen."""

from minichat.ui.transcript.glyphs import ASCII, UNICODE, Glyphs
from minichat.ui.transcript.widget import Transcript

__all__ = ["ASCII", "UNICODE", "Glyphs", "Transcript"]
