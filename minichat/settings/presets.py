"""Named sets of sampling parameters: built-in ones, and the user's in presets.toml."""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.api.params import FIELDS, SamplingParams
from minichat.settings.load import Problem, TomlDocument, read
from minichat.settings.sampling import read_params
from minichat.settings.toml import table
from minichat.shell.paths import private_folder

SHIPPED = {
    "greedy": SamplingParams(temperature=0.0),
    "precise": SamplingParams(temperature=0.3, top_p=0.9),
    "balanced": SamplingParams(temperature=0.7, top_p=0.95),
    "creative": SamplingParams(temperature=1.0, min_p=0.05),
}
HEAD = "# Decoding presets, written by minichat. You may edit them. Saving a preset removes comments.\n\n"
LONGEST_NAME = 40
OWN = "own"  # what the drawer calls unsaved settings
DEFAULT = "default"  # ... and those that a new chat has


_TAKEN = {
    OWN: f"{OWN!r} is what unsaved settings are called",
    DEFAULT: f"{DEFAULT!r} is what the settings of a new chat are called",
}


class PresetError(Exception):
    """A preset cannot be saved or deleted. Holds the reason."""


@dataclass(frozen=True, slots=True)
class Presets:
    """The presets, the user's first. A user preset replaces a built-in one of the same name."""

    own: dict[str, SamplingParams]
    problems: list[Problem]

    @property
    def all(self) -> dict[str, SamplingParams]:
        return {**self.own, **{name: params for name, params in SHIPPED.items() if name not in self.own}}


def load_presets(file: Path) -> Presets:
    document = read(file)
    own = {name: params for name in document.tables if (params := _preset(document, name))}
    return Presets(own, document.problems)


def save_preset(file: Path, name: str, params: SamplingParams) -> None:
    """Save the preset and keep the others. Refuse if the file has errors, because data would be lost."""
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise PresetError(f"a preset name must have 1 to {LONGEST_NAME} printable characters, got {name!r}")
    if name in _TAKEN:
        raise PresetError(f"{_TAKEN[name]}; choose another name")
    _write(file, {**_whole(file), name: params})


def delete_preset(file: Path, name: str) -> None:
    """Delete a user preset. A built-in one of the same name becomes visible again."""
    own = _whole(file)
    if name not in own:
        raise PresetError(f"no saved preset {name!r} in {file}")
    _write(file, {other: params for other, params in own.items() if other != name})


def _preset(document: TomlDocument, name: str) -> SamplingParams | None:
    values = document.tables[name]
    if name in _TAKEN:
        document.report(name, f"must have another name: {_TAKEN[name]}")
        return None
    if not isinstance(values, dict):
        document.report(name, f"must be a table: write [{name}] above its parameters")
        return None
    return read_params(values, SamplingParams(), lambda key, says: document.report(f"{name}.{key}", says))


def _whole(file: Path) -> dict[str, SamplingParams]:
    presets = load_presets(file)
    if presets.problems:
        raise PresetError(f"fix this first, because saving would lose it: {presets.problems[0]}")
    return presets.own


def _write(file: Path, presets: dict[str, SamplingParams]) -> None:
    """Replace the file atomically: readers see the old file or the new one."""
    default = SamplingParams()
    tables = []
    for name, params in presets.items():
        values = {key: getattr(params, key) for key in FIELDS}
        tables.append(
            table(name, {key: value for key, value in values.items() if value != getattr(default, key)})
        )
    try:
        private_folder(file.parent)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as draft:
                draft.write(HEAD + "\n".join(tables))
                draft.flush()
                os.fsync(draft.fileno())
            os.replace(temporary, file)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise PresetError(f"cannot write {file}: {error.strerror}") from error
