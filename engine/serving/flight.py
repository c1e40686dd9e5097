"""A step between its launch and its commit."""

from dataclasses import dataclass

from engine.scheduling.step import Step


@dataclass(slots=True)
class Flight:
    """A step in flight: launched, not committed."""

    step: Step
    handle: object
    scheduling: float  # seconds
    launching: float  # seconds
