"""What a person may turn off and on while the engine runs, in words."""

from collections.abc import Sequence

from engine.snapshot import Switch

NAMES = {
    "prefix_cache": "prefix cache",
    "chunked_prefill": "chunked prefill",
    "overlap": "overlap",
    "graphs": "graphs",
}
MEANING = {
    "prefix_cache": "blocks that hold the beginning of a prompt already are used again",
    "chunked_prefill": "long prompts are cut, so that replies go on beside them",
    "overlap": "the next step is planned while the device works",
    "graphs": "the device replays recorded steps instead of being told each kernel",
}


def named(name: str, on: bool) -> str:
    return f"{NAMES.get(name, name)} {'on' if on else 'off'}"


def turned(switches: Sequence[Switch]) -> tuple[str, ...]:
    """Those that are not as the engine was started."""
    return tuple(named(each.name, each.on) for each in switches if each.on is not each.usual)
