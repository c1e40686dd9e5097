"""What a person may set, and how it is read from config.toml."""

from minichat.settings.load import Loaded, Problem, load
from minichat.settings.schema import Settings

__all__ = ["Loaded", "Problem", "Settings", "load"]
