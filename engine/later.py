"""Parts of torch that an engine can start without: a third of the time of torch's import.

They are Python's versions of operators for tensors without data (most have one in C++), and torch.export.
Their places are taken by modules that are empty until something asks for their contents. torch's compiler
relies on the first without asking, so an import of it loads them, and so does `load`.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
_LATER = ("torch._meta_registrations", "torch.distributed._meta_registrations", "torch.export")
_CLASSES = (  # of generators, in torch 2.14 and 2.13
    ("torch._custom_class_base", "CustomClassBaseMeta"),
    ("torch._opaque_base", "OpaqueBaseMeta"),
)
_NEED_THEM = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "transformers")
_gate = RLock()
_empty: dict[str, "_Empty"] = {}


class _Empty(ModuleType):
    real: Loader

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import asks for some
            raise AttributeError(name)
        _fill(self)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


class _Postponing(Loader):
    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made = _empty[spec.name] = _Empty(spec.name)
        made.real = self._real
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Later."""


class _Loaded(Loader):
    """A module that its package has just loaded. The import would run it again."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Finder:
    def __init__(self) -> None:
        self.postpones = True

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name in _NEED_THEM:
            load()
        elif (package := _empty.get(name.rpartition(".")[0])) is not None:
            _fill(package)
            if (module := sys.modules.get(name)) is not None and module.__spec__ is not None:
                module.__spec__ = ModuleSpec(name, _Loaded(module.__spec__))
                return module.__spec__
        elif self.postpones and name in _LATER:
            found = PathFinder.find_spec(name, path)
            if found is not None and found.loader is not None:
                found.loader = _Postponing(found.loader)
            return found
        return None


@contextmanager
def postponed() -> Iterator[None]:
    """Leave out these parts of torch, if it is imported here for the first time."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.postpones = False
        _allow_generators()


def _allow_generators() -> None:
    """What is left out gives generators a class; without it, torch makes none since version 2.13."""
    give = getattr(sys.modules.get("torch._C"), "_set_generator_metaclass", None)
    if give is None:
        return
    for module, name in _CLASSES:
        with suppress(ImportError, AttributeError):
            give(getattr(import_module(module), name))
            return
    import_module("torch._prims.rng_prims")  # gives it, and takes 0.2 s


def load() -> None:
    """Load what was left out. Before tensors without data are computed with, in ways that are not known."""
    for each in [*_empty.values()]:
        _fill(each)


def without_data(make: Callable[[], T]) -> T:
    """Call `make` with tensors that have shapes only."""
    import torch

    try:
        with torch.device("meta"):
            return make()
    except NotImplementedError:
        if not _empty:
            raise
        load()
        with torch.device("meta"):
            return make()


def _fill(module: _Empty) -> None:
    with _gate:
        if _empty.pop(module.__name__, None) is not None:
            module.real.exec_module(module)
            module.__class__ = ModuleType  # type: ignore[assignment]
