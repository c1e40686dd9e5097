"""The models that are on this machine: the built-in one, folders, the cache of the hub. Only ever read."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
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


Source = Callable[[], list[Model]]  # reads many small files, and may take as long as a network does


def sources(folders: Iterable[str], recent: Sequence[str]) -> list[Source]:
    """Where models may be, each apart: one that does not answer holds up none of the others."""
    used: list[Source] = [partial(_recent, name) for name in recent]
    near: list[Source] = [partial(_in_folder, folder) for folder in [*folders, os.curdir]]
    return [*used, _built_in, *near, _in_cache]


def arranged(found: Iterable[Iterable[Model]]) -> list[Model]:
    """What came of the sources, in their order, each model once: what cannot be run comes last."""
    models: dict[str, Model] = {}
    for model in chain.from_iterable(found):
        known = models.get(model.name)
        models[model.name] = replace(model, recent=True) if known is not None and known.recent else model
    return sorted(models.values(), key=lambda model: bool(model.trouble) and not model.recent)


def identity(name: str) -> str:
    """One name for one model, however it was written."""
    path = os.path.expanduser(name)
    return os.path.realpath(path) if name != BUILT_IN and os.path.isdir(path) else name


def local(query: str) -> Model | None:
    """What was typed, if it is a folder with a model. Asks the file system."""
    name = query.strip()
    if name and os.path.isfile(os.path.join(os.path.expanduser(name), CONFIG)):
        folder = identity(name)
        return Model(folder, "folder", support(Path(folder)))
    return None


def on_hub(query: str) -> Model | None:
    """What was typed, if it can be a name of the hub."""
    name = query.strip()
    if name.count("/") == 1 and HUB_NAME.fullmatch(name) and ".." not in name and "--" not in name:
        return Model(name, "hub")
    return None


def hub_cache() -> Path:
    import huggingface_hub.constants as hub

    return Path(hub.HF_HUB_CACHE)


def _built_in() -> list[Model]:
    return [Model(BUILT_IN, "built in", support(find_model(None).folder))]


def _in_folder(folder: str) -> list[Model]:
    """The folder, if it is a checkpoint, and the checkpoints right inside of it."""
    path = Path(identity(folder))
    return [
        Model(str(each), "folder", looked)
        for each in [path, *_children(path)]
        if (each / CONFIG).is_file() and (looked := support(each)).family
    ]


def _in_cache() -> list[Model]:
    return [model for home in _children(hub_cache()) for model in _cached(home)]


def _cached(home: Path) -> Iterator[Model]:
    """The model of a folder of the hub's cache."""
    name = home.name.removeprefix("models--").replace("--", "/", 1)
    if home.name.startswith("models--") and HUB_NAME.fullmatch(name):
        snapshot = _snapshot(home)
        if snapshot is not None and (snapshot / CONFIG).is_file():
            yield Model(name, "hub cache", support(snapshot))


def _snapshot(home: Path) -> Path | None:
    """What the engine would take: the commit that the main branch was at."""
    try:
        return home / "snapshots" / (home / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _recent(name: str) -> list[Model]:
    """A model that was used once, if it is still there or can be fetched."""
    name = identity(name)
    if name == BUILT_IN:
        model: Model | None = _built_in()[0]
    elif os.path.isabs(name):
        model = local(name)
    else:
        home = hub_cache() / f"models--{name.replace('/', '--')}"
        model = next(_cached(home), None) or on_hub(name)
    return [replace(model, recent=True)] if model is not None else []


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MOST), strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]
