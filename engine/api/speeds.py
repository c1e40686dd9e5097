"""What a device can do at most, which explains how fast steps are."""

from typing import NamedTuple


class Speeds(NamedTuple):
    """The measured peak speeds of a device."""

    read: float  # bytes per second
    multiply: float  # operations per second of products in the present scheme of the weights; 0: not known
