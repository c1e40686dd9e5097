"""The models on this machine: the built-in one, folders, GGUF files, and the hub cache. Read only."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from engine.gguf.header import is_gguf
from engine.gguf.parts import first_part
from engine.models.find import BUILT_IN, CONFIG, HUB_NAME, find_model
from engine.models.support import Support, support
from minichat.shell.filesystems import is_folder

_MOST = 500  # maximum entries of a folder to examine
MISSING = "not found"  # instead of a source
_FILE = "GGUF file"  # the label of its source


@dataclass(frozen=True, slots=True)
class Model:
    """A model to choose, or the reason why it is unavailable."""

    name: str  # as passed to the engine: a folder, a file or a hub name
    place: str  # a short label of its source
    support: Support | None = None  # None: not downloaded yet
    recent: bool = False

    @property
    def trouble(self) -> str:
        return self.support.trouble if self.support else ""

    @property
    def title(self) -> str:
        home = os.path.expanduser("~") + os.sep
        return f"~/{self.name.removeprefix(home)}" if self.name.startswith(home) else self.name

    def holds(self, query: str) -> bool:
        """Whether every word of the query occurs in the displayed text."""
        family = self.support.family if self.support else ""
        text = f"{self.name} {self.place} {family}".lower()
        return all(word in text for word in query.lower().split())


Source = Callable[[], list[Model]]  # reads many small files, possibly over a network


def sources(folders: Iterable[str], recent: Sequence[str]) -> list[Source]:
    """The places to search, as separate functions, so that a slow one does not delay the others."""
    used: list[Source] = [partial(_recent, name) for name in recent]
    listed: list[Source] = [partial(_in_listed, folder) for folder in folders]
    return [*used, _built_in, *listed, partial(_in_folder, os.curdir), _in_cache]


def arranged(found: Iterable[Iterable[Model]]) -> list[Model]:
    """Merge the results of the sources without duplicates; unsupported models come last."""
    models: dict[str, Model] = {}
    for model in chain.from_iterable(found):
        known = models.get(model.name)
        models[model.name] = replace(model, recent=True) if known is not None and known.recent else model
    return sorted(models.values(), key=lambda model: bool(model.trouble) and not model.recent)


def identity(name: str) -> str:
    """The canonical name of a model."""
    path = os.path.expanduser(name)
    if name == BUILT_IN or not (os.path.isdir(path) or _is_file(path)):
        return name
    real = os.path.realpath(path)
    return str(first_part(Path(real))) if _is_file(real) else real


def local(query: str) -> list[Model]:
    """The models in the folder or the file the user typed. Reads the file system."""
    name = query.strip()
    path = os.path.expanduser(name)
    if name and _is_file(path):
        return [_at(name, _FILE)]
    if name and os.path.isfile(os.path.join(path, CONFIG)):
        return [_at(name, "folder")]
    found = _in_folder(path) if name and os.path.isdir(path) else []
    if not found and name.startswith(("/", "~", ".")) and os.path.isdir(path):
        nothing = Support("", 0, trouble=f"this folder has neither a {CONFIG} nor a GGUF file")
        found = [Model(identity(name), "folder", nothing)]
    return found


def _at(name: str, place: str) -> Model:
    whole = identity(name)
    return Model(whole, place, support(Path(whole)))


def on_hub(query: str) -> Model | None:
    """The hub model the user typed, if it can be a hub name."""
    name = query.strip()
    if name.count("/") == 1 and HUB_NAME.fullmatch(name) and ".." not in name and "--" not in name:
        return Model(name, "hub")
    return None


def hub_cache() -> Path:
    import huggingface_hub.constants as hub

    return Path(hub.HF_HUB_CACHE)


def _built_in() -> list[Model]:
    return [Model(BUILT_IN, "built in", support(find_model(None).folder))]


def _in_listed(folder: str) -> list[Model]:
    """What a folder of the settings has, or that it does not exist."""
    if os.path.isdir(path := os.path.expanduser(folder)):
        return _in_folder(folder)
    missing = Support("", 0, trouble="engine.folders lists it, but there is no such folder")
    return [Model(path, MISSING, missing)]


def _in_folder(folder: str) -> list[Model]:
    """The folder if it is a checkpoint, and the checkpoints and GGUF files directly inside it."""
    try:
        path = Path(identity(folder))
    except FileNotFoundError:  # the current folder was deleted
        return []
    found = [
        Model(str(each), "folder", looked)
        for each in [path, *_children(path)]
        if os.path.isfile(each / CONFIG) and (looked := support(each)).family
    ]
    return found + [Model(str(each), _FILE, support(each)) for each in _files(path)]


def _in_cache() -> list[Model]:
    return [model for home in _children(hub_cache()) for model in _cached(home)]


def _cached(home: Path) -> Iterator[Model]:
    """The model in one folder of the hub cache."""
    name = home.name.removeprefix("models--").replace("--", "/", 1)
    if home.name.startswith("models--") and HUB_NAME.fullmatch(name):
        snapshot = _snapshot(home)
        if snapshot is not None and os.path.isfile(snapshot / CONFIG):
            yield Model(name, "hub cache", support(snapshot))


def _snapshot(home: Path) -> Path | None:
    """The snapshot the engine would load: the commit of the main branch."""
    try:
        return home / "snapshots" / (home / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _recent(name: str) -> list[Model]:
    """A recently used model, if it still exists or can be downloaded."""
    name = identity(name)
    if name == BUILT_IN:
        model: Model | None = _built_in()[0]
    elif os.path.isabs(name):
        model = next((each for each in local(name) if each.name == name), None)
    else:
        home = hub_cache() / f"models--{name.replace('/', '--')}"
        model = next(_cached(home), None) or on_hub(name)
    return [replace(model, recent=True)] if model is not None else []


def _is_file(path: str) -> bool:
    """Whether a path is an existing GGUF file."""
    return is_gguf(Path(path)) and os.path.isfile(path)


def _children(folder: Path) -> list[Path]:
    return _entries(folder, is_folder)


def _files(folder: Path) -> list[Path]:
    """The GGUF files; of a model in several, the first."""
    found = _entries(folder, lambda entry: is_gguf(Path(entry.name)) and os.path.isfile(entry.path))
    return list(dict.fromkeys(map(first_part, found)))


def _entries(folder: Path, kept: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MOST), strict=False) if kept(entry)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]
