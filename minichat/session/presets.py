"""The presets of the decoding drawer: built-in ones and the user's."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from engine.api.params import SamplingParams
from minichat.session.decoding import Preset
from minichat.settings.presets import PresetError, delete_preset, load_presets, save_preset


class SavedPresets:
    """Reads and writes the presets file, and reports errors."""

    def __init__(
        self,
        file: Path,
        *,
        changed: Callable[[], None],
        notify: Callable[[str], None],
        report_all: Callable[[Sequence[object]], None],
    ) -> None:
        self.all: tuple[Preset, ...] = ()
        self.names: frozenset[str] = frozenset()  # of the user's presets
        self._file, self._changed, self._notify, self._report_all = file, changed, notify, report_all

    def read(self) -> None:
        presets = load_presets(self._file)
        self.all = tuple(Preset.of(*each) for each in presets.all.items())
        self.names = frozenset(presets.own)
        self._report_all(presets.problems)

    def own(self) -> tuple[Preset, ...]:
        """The user's presets. They are read again: another screen may have saved or deleted some."""
        self.read()
        self._changed()
        return tuple(each for each in self.all if each.name in self.names)

    def save(self, name: str, params: SamplingParams) -> bool:
        """Return whether the preset was saved. The notice says if it replaces one."""
        done = "Replaced" if name in load_presets(self._file).all else "Saved"
        return self._change(partial(save_preset, self._file, name, params), f"{done} the preset {name}")

    def delete(self, name: str) -> None:
        self._change(partial(delete_preset, self._file, name), f"Deleted the preset {name}")

    def _change(self, change: Callable[[], None], done: str) -> bool:
        try:
            change()
        except PresetError as error:
            self._report_all([error])
            return False
        self._notify(done)
        self.read()
        self._changed()
        return True
