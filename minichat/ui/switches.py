"""Labels of the switches that the user can toggle while the engine runs."""

from collections.abc import Sequence

from engine.api.snapshot import Switch

NAMES = {
    "prefix_cache": "prefix cache",
    "chunked_prefill": "chunked prefill",
    "overlap": "overlap",
    "graphs": "graphs",
}
MEANING = {
    "prefix_cache": "reuses KV blocks of earlier prompts",
    "chunked_prefill": "splits prompts so replies keep running",
    "overlap": "plans the next step while the device works",
    "graphs": "replays captured CUDA graphs",
}


def named(name: str, on: bool) -> str:
    return f"{NAMES.get(name, name)} {'on' if on else 'off'}"


def changed_switches(switches: Sequence[Switch]) -> tuple[str, ...]:
    """The switches that differ from how the engine was started."""
    return tuple(named(each.name, each.on) for each in switches if each.on is not each.usual)
