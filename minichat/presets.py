"""The presets that the drawer offers: the shipped ones, and those a person saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engine.params import SamplingParams
from minichat.decoding import Preset
from minichat.settings.presets import PresetError, delete_preset, load_presets, save_preset

if TYPE_CHECKING:
    from minichat.app import MinichatApp


class Presets:
    """Reads and writes the file; what cannot be written is a notice."""

    def __init__(self, app: MinichatApp) -> None:
        self._app, self._file = app, app.paths.presets
        self.all: tuple[Preset, ...] = ()

    def read(self) -> None:
        presets = load_presets(self._file)
        self.all = tuple(Preset.of(*each) for each in presets.all.items())
        self._app.complain_of(presets.problems)

    def save(self, name: str, params: SamplingParams) -> None:
        self._change(partial(save_preset, self._file, name, params), f"saved as the preset {name}")

    def delete(self, name: str) -> None:
        self._change(partial(delete_preset, self._file, name), f"deleted the preset {name}")

    def _change(self, change: Callable[[], None], done: str) -> None:
        try:
            change()
        except PresetError as error:
            self._app.complain(str(error))
        else:
            self._app.notify(done)
            self.read()
            self._app.main.decoding.turn()
