"""Where minichat stores files, by the XDG rules. `locate()` creates nothing."""

import errno
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "minichat"


@dataclass(frozen=True, slots=True)
class Paths:
    """The three folders and the files in them."""

    config: Path
    state: Path
    cache: Path

    @property
    def settings(self) -> Path:
        return self.config / "config.toml"

    @property
    def presets(self) -> Path:
        return self.config / "presets.toml"

    @property
    def themes(self) -> Path:
        return self.config / "themes"

    @property
    def chats(self) -> Path:
        return self.state / "chats.db"

    @property
    def remembered(self) -> Path:
        return self.state / "remembered.json"

    @property
    def log(self) -> Path:
        return self.state / "minichat.log"

    @property
    def server_key(self) -> Path:
        return self.state / "server.key"

    @property
    def engine_log(self) -> Path:
        return self.state / "engine.log"

    @property
    def engines(self) -> Path:
        return self.state / "engines"

    @property
    def clipboard(self) -> Path:
        return self.state / "clipboard.txt"

    @property
    def exports(self) -> Path:
        return self.state / "exports"

    def named(self) -> dict[str, Path]:
        """All paths by name, in display order."""
        files = "settings presets themes chats remembered exports clipboard log engine_log engines server_key"
        names = [*files.split(), "config", "state", "cache"]
        return {name: getattr(self, name) for name in names}


def locate(environment: Mapping[str, str] = os.environ) -> Paths:
    """The paths of this user. By the XDG rules, a relative folder is ignored."""
    home = _home(environment)

    def folder(variable: str, usual: str) -> Path:
        named = environment.get(variable, "")
        return (Path(named) if os.path.isabs(named) else home / usual) / NAME

    return Paths(
        config=folder("XDG_CONFIG_HOME", ".config"),
        state=folder("XDG_STATE_HOME", ".local/state"),
        cache=folder("XDG_CACHE_HOME", ".cache"),
    )


def files_in(folder: Path, pattern: str) -> list[Path]:
    """The matching files, sorted; empty if the folder is missing or unreadable, where pathlib raises."""
    return sorted(folder.glob(pattern)) if os.access(folder, os.R_OK | os.X_OK) else []


def private_folder(folder: Path) -> Path:
    """Create the folder with access for its owner only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def damaged_name(path: Path) -> Path:
    """A free name beside it, for a file that is damaged and replaced."""
    stem = f"{path.stem}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (path.with_name(f"{stem}{extra}{path.suffix}") for extra in ("", *range(1, 1000)))
    return next(name for name in names if not name.exists())


def read_file(file: Path) -> str:
    """The text of a file that the user named; never waits, as reading a pipe or a device would."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    return file.read_text(encoding="utf-8-sig")  # editors on Windows begin it with a mark


def _home(environment: Mapping[str, str]) -> Path:
    if named := environment.get("HOME"):
        return Path(named)
    try:
        return Path.home()
    except RuntimeError:  # a user unknown to the system, as in some containers
        return Path(tempfile.gettempdir()) / f"{NAME}-{os.getuid()}"
