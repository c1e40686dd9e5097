"""The models that are on this machine: the built-in one, folders, the cache of the hub. Only ever read."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.models.find import BUILT_IN, CONFIG, HUB_NAME, find_model
from engine.models.support import Support, support

_MOST = 500  # entries of a folder that are looked at


@dataclass(frozen=True, slots=True)
class Model:
    """One that can be chosen, or is told why not."""

    name: str  # as the engine takes it: a folder, or a name of the hub
    place: str  # where it comes from, in a word
    support: Support | None = None  # None: it is not here yet
    recent: bool = False

    @property
    def trouble(self) -> str:
        return self.support.trouble if self.support else ""

    @property
    def title(self) -> str:
        home = os.path.expanduser("~") + os.sep
        return f"~/{self.name.removeprefix(home)}" if self.name.startswith(home) else self.name

    def holds(self, query: str) -> bool:
        """Whether every word of the query is in what is shown of it."""
        family = self.support.family if self.support else ""
        text = f"{self.name} {self.place} {family}".lower()
        return all(word in text for word in query.lower().split())


def catalogue(folders: Iterable[str], recent: Sequence[str]) -> list[Model]:
    """Recently used ones first, then the built-in one, folders, the hub's cache. Reads many small files."""
    found: dict[str, Model] = {}
    for model in [*_built_in(), *_in_folders([*folders, os.curdir]), *_in_cache(hub_cache())]:
        found.setdefault(model.name, model)
    used = []
    for name in map(identity, recent):
        known = found.pop(name, None) or _elsewhere(name)
        if known is not None:
            used.append(replace(known, recent=True))
    return [*used, *sorted(found.values(), key=lambda model: bool(model.trouble))]


def identity(name: str) -> str:
    """One name for one model, however it was written."""
    path = os.path.expanduser(name)
    return os.path.realpath(path) if name != BUILT_IN and os.path.isdir(path) else name


def named(query: str) -> Model | None:
    """What was typed, if it can be a model by itself: a folder that there is, or a name of the hub."""
    name = query.strip()
    if name and os.path.isfile(os.path.join(os.path.expanduser(name), CONFIG)):
        folder = identity(name)
        return Model(folder, "folder", support(Path(folder)))
    if name.count("/") == 1 and HUB_NAME.fullmatch(name) and ".." not in name and "--" not in name:
        return Model(name, "hub")
    return None


def hub_cache() -> Path:
    import huggingface_hub.constants as hub

    return Path(hub.HF_HUB_CACHE)


def _built_in() -> Iterator[Model]:
    yield Model(BUILT_IN, "built in", support(find_model(None).folder))


def _in_folders(folders: Iterable[str]) -> Iterator[Model]:
    """Folders that are checkpoints, and the checkpoints right inside of folders."""
    for folder in folders:
        path = Path(identity(folder))
        for each in [path, *_children(path)]:
            if (each / CONFIG).is_file() and (looked := support(each)).family:
                yield Model(str(each), "folder", looked)


def _in_cache(cache: Path) -> Iterator[Model]:
    for home in _children(cache):
        if not home.name.startswith("models--"):
            continue
        name = home.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = _snapshot(home)
        if snapshot is not None and (snapshot / CONFIG).is_file() and HUB_NAME.fullmatch(name):
            yield Model(name, "hub cache", support(snapshot))


def _snapshot(home: Path) -> Path | None:
    """What the engine would take: the commit that the main branch was at."""
    try:
        return home / "snapshots" / (home / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _elsewhere(name: str) -> Model | None:
    """A model that was used once, and is in none of the places."""
    if os.path.isabs(name):
        return named(name)
    return Model(name, "hub") if "/" in name else None


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MOST), strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]
