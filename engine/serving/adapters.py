"""The LoRA adapters of an engine, by name."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from engine.api import events
from engine.api.errors import BadInput, UnknownAdapter
from engine.api.request import NO_ADAPTER, Adapter
from engine.api.snapshot import AdapterView
from engine.execution.changes import AttachAdapter, DetachAdapter
from engine.execution.protocol import ReadAdapter, Runner
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Rows

NAME = re.compile(r"[A-Za-z0-9][\w.:/-]{0,95}", re.ASCII)


class AdapterRegistry:
    """Gives each loaded adapter a name for requests and a number for steps."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler, self._model = scheduler, model
        self._numbers = itertools.count(1)
        self._loaded: dict[str, tuple[Adapter, AttachAdapter]] = {}
        self._prepared: dict[Path, ReadAdapter] = {}  # read by helper threads

    @property
    def loads(self) -> list[AttachAdapter]:
        """The changes that load the present adapters on a fresh runner."""
        return [change for _, change in self._loaded.values()]

    @property
    def digests(self) -> tuple[tuple[str, bytes], ...]:
        """The digest of each loaded adapter's files, by name."""
        return tuple((name, adapter.digest) for name, (adapter, _) in self._loaded.items())

    def named(self, name: str) -> Adapter:
        """Return a loaded adapter; without a name, none."""
        if not name:
            return NO_ADAPTER
        if name not in self._loaded:
            others = f"choose one of {', '.join(self._loaded)}, or none" if self._loaded else "choose none"
            problem = f"no adapter {name[:80]!r} is loaded; load it, or {others}"
            raise UnknownAdapter(problem, field="adapter", value=name)
        return self._loaded[name][0]

    def prepare(self, name: str, folder: Path, runner: Runner) -> None:
        """Read the files for `load`, from any thread, so that steps continue."""
        self._check_new(name)
        self._prepared[folder] = runner.read_adapter(folder)

    def load(self, name: str, folder: Path, runner: Runner) -> None:
        files = self._prepared.pop(folder, None)
        self._check_new(name)
        files, number = files or runner.read_adapter(folder), next(self._numbers)
        change = AttachAdapter(number, str(folder), files.digest)
        runner.apply(change)
        adapter = Adapter(name, number, files.digest, files.rank, files.nbytes, files.operations)
        self._loaded[name] = adapter, change
        self._emit(name, loaded=True)

    def _check_new(self, name: str) -> None:
        """Raise if an adapter cannot be loaded under this name."""
        if not NAME.fullmatch(name):
            rule = "letters, digits and . _ - : / only, at most 96"
            raise BadInput(f"{name[:100]!r} cannot be the name of an adapter: {rule}", field="name")
        if name in self._loaded:
            raise BadInput(f"an adapter {name!r} is already loaded; drop it first", field="name", value=name)
        if name == self._model:
            raise BadInput(f"{name!r} is the model's name; choose another one", field="name")

    def drop(self, name: str, runner: Runner) -> None:
        if name not in self._loaded:
            raise UnknownAdapter(f"no adapter {name[:80]!r} is loaded", field="name", value=name)
        number = self._loaded[name][0].number
        if users := sum(each.adapter.number == number for each in self._scheduler.requests.values()):
            others = (
                "a request; wait for it, or end it"
                if users == 1
                else f"{users} requests; wait for them, or end them"
            )
            raise BadInput(f"adapter {name!r} is used by {others}")
        runner.apply(DetachAdapter(number))
        del self._loaded[name]
        self._emit(name, loaded=False)

    def view(self) -> tuple[AdapterView, ...]:
        return tuple(self._views())

    def cost(self, rows: Rows) -> tuple[int, int]:
        """The bytes of adapters that a step with these rows reads, and its operations with them."""
        if not rows.rare:
            return 0, 0
        tokens = Counter[int]()
        for number, length in zip(rows.adapters.tolist(), rows.lengths.tolist(), strict=True):
            tokens[number] += length
        used = [adapter for adapter, _ in self._loaded.values() if adapter.number in tokens]
        operations = sum(each.operations * tokens[each.number] for each in used)
        return sum(each.nbytes for each in used), operations

    def _views(self) -> Iterator[AdapterView]:
        users = Counter(each.adapter.number for each in self._scheduler.requests.values())
        for adapter, change in self._loaded.values():
            source, count = Path(change.folder).name, users[adapter.number]
            yield AdapterView(adapter.name, adapter.rank, adapter.nbytes, source, count)

    def _emit(self, name: str, *, loaded: bool) -> None:
        scheduler = self._scheduler
        scheduler.emit(events.AdapterChanged(scheduler.step, scheduler.clock(), name, loaded))
