"""What is chosen in the quantization drawer, as the engine is asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.commands import CancelQuantization, SetKvScheme, SetQuantization

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


def quantize(screen: MainScreen, scheme: str) -> None:
    """The weights; an empty scheme takes back the change that is under way."""
    backend, shot = screen.program.backend, screen.latest
    if not scheme:
        screen.program.ask(backend.send(CancelQuantization()))
    elif shot and shot.quantization == scheme and (shot.change is None or shot.change.over):
        screen.notify(f"the weights are kept as {scheme} already", severity="warning")
    else:
        screen.program.ask(backend.send(SetQuantization(scheme)))


def recache(screen: MainScreen, scheme: str) -> None:
    if screen.latest and screen.latest.kv_scheme == scheme:
        screen.notify(f"the cache is kept as {scheme} already", severity="warning")
    else:
        screen.program.ask(screen.program.backend.send(SetKvScheme(scheme)))
