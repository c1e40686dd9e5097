"""How the screen starts: what the command line and the settings ask for."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.api.errors import EngineError, ModelNotFound
from engine.api.params import SamplingParams
from minichat.settings import Loaded, load
from minichat.shell.first import First
from minichat.shell.paths import Paths
from minichat.shell.terminal import Terminal


class Blame(NamedTuple):
    """What an error of the engine is about, if that is a setting or an option."""

    name: str = ""
    place: str = ""  # in the settings: "config.toml:2"
    option: str = ""  # as typed: "--device cuda:9"

    def of_any_model(self, error: Exception | None) -> bool:
        """Whether another model has the same error."""
        return self.name in ("policy", "device") or (
            self.name == "draft" and isinstance(error, ModelNotFound)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`named`: the command line sets sampling or a system prompt, which the first chat must have.

    `blame`: what an error of the engine is about. None: the engine is not started with these settings.
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
    blame: Callable[[EngineError], Blame] | None = None
    tour: bool = False  # open the guided tour of the engine
    clock: Callable[[], float] = time.monotonic  # seconds; times replies and repeated keys

    def edited(self) -> bool:
        """Whether the file has other settings of the engine now."""
        if self.blame is None:
            return False
        return load(self.paths.settings).settings.engine != self.loaded.settings.engine
