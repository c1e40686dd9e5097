"""What the command line and the settings say of how the screen begins."""

from dataclasses import dataclass, field

from engine.api.params import SamplingParams
from minichat.settings import Loaded
from minichat.shell.first import First
from minichat.shell.paths import Paths
from minichat.shell.terminal import Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`named`: the command line says how a chat is drawn, and gets one that is."""

    model: str
    paths: Paths
    terminal: Terminal
    params: SamplingParams
    system: str = ""
    named: bool = False
    ascii: bool = False
    loaded: Loaded
    first: First = field(default_factory=First)
    tour: bool = False  # whether a panel leads through what the engine can do
