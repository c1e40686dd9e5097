"""What a person may turn off and on while the engine runs, in words."""

from collections.abc import Sequence

from engine.api.snapshot import Switch

NAMES = {
    "prefix_cache": "prefix cache",
    "chunked_prefill": "chunked prefill",
    "overlap": "overlap",
    "graphs": "graphs",
}
MEANING = {
    "prefix_cache": "what was read before is not computed again",
    "chunked_prefill": "prompts are cut, so that replies go on",
    "overlap": "plans the next step while the device works",
    "graphs": "the device replays recorded steps",
}


def named(name: str, on: bool) -> str:
    return f"{NAMES.get(name, name)} {'on' if on else 'off'}"


def turned(switches: Sequence[Switch]) -> tuple[str, ...]:
    """Those that are not as the engine was started."""
    return tuple(named(each.name, each.on) for each in switches if each.on is not each.usual)
