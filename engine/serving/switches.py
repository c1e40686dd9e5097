"""Techniques that can be switched off. Each step reads them again, so they can change at any time."""

from engine.api import events
from engine.api.errors import BadInput
from engine.api.snapshot import Switch
from engine.execution.changes import UseGraphs
from engine.serving.machine import Machine


class Switches:
    def __init__(self, engine: Machine) -> None:
        self._engine = engine
        self._usual = self._present()

    def view(self) -> tuple[Switch, ...]:
        return tuple(Switch(name, on, self._usual.get(name, on)) for name, on in self._present().items())

    def turn(self, name: str, on: bool) -> None:
        engine, present = self._engine, self._present()
        if name not in present:
            known = ", ".join(present)
            raise BadInput(f"unknown switch {name!r}; available: {known}", field="name", value=name)
        if not isinstance(on, bool):
            raise BadInput(f"switch {name} must be True or False, got {on!r}", field="on", value=on)
        if on is present[name]:
            return
        match name:
            case "prefix_cache":
                engine.scheduler.rules.prefix_cache = on
            case "chunked_prefill":
                engine.scheduler.rules.chunked_prefill = on
            case "overlap":  # a step in flight is committed before the next one, or with it
                engine.depth = int(on)
            case "graphs":
                engine.runner.apply(UseGraphs(on))
        engine.bus.emit(events.Switched(engine.scheduler.step, engine.clock(), name, on))

    def _present(self) -> dict[str, bool]:
        rules, graphs = self._engine.scheduler.rules, self._engine.runner.graphs
        found = {
            "prefix_cache": rules.prefix_cache,
            "chunked_prefill": rules.chunked_prefill,
            "overlap": self._engine.depth > 0,
        }
        return found if graphs is None else {**found, "graphs": graphs}
