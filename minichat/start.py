"""How the screen starts: what the command line and the settings ask for."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.api.errors import EngineError
from engine.api.params import SamplingParams
from minichat.settings import Loaded, load
from minichat.shell.first import First
from minichat.shell.paths import Paths
from minichat.shell.terminal import Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`named`: the command line sets sampling or a system prompt, which the first chat must have.

    `blame`: the place in the settings that an error of the engine is about, as "config.toml:2"; empty if
    none is. None: the engine is not started with these settings.
    """

    model: str
    paths: Paths
    terminal: Terminal
    params: SamplingParams
    system: str = ""
    named: bool = False
    ascii: bool = False
    loaded: Loaded
    first: First = field(default_factory=First)
    blame: Callable[[EngineError], str] | None = None
    tour: bool = False  # open the guided tour of the engine
    clock: Callable[[], float] = time.monotonic  # seconds; times replies and repeated keys

    def edited(self) -> bool:
        """Whether the file has other settings of the engine now."""
        if self.blame is None:
            return False
        return load(self.paths.settings).settings.engine != self.loaded.settings.engine
