"""A user's settings file, for tests of the screen."""

from pathlib import Path


def configured(home: Path, text: str) -> Path:
    """Write the settings of this home, before the screen starts."""
    file = home / ".config" / "minichat" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file
