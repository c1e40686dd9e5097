"""What an engine runs, and on what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The model, device and settings of an engine."""

    model: str
    dtype: str
    device: str
    attention: str
    policy: str
    kv_dtype: str = ""  # of keys and values that are not compressed; empty: there are none
    windows: tuple[int, ...] = ()  # of the attention layers, each once; 0: none
