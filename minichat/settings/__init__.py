"""The user's settings and how config.toml is read."""

from minichat.settings.load import Loaded, Problem, load
from minichat.settings.schema import Settings

__all__ = ["Loaded", "Problem", "Settings", "load"]
