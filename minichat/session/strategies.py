"""Named decoding strategies: which one is active, and how to switch."""

from typing import Any

from engine.api.errors import BadParams
from engine.api.params import SamplingParams

NAMES = ("greedy", "sampling", "top-k", "top-p", "min-p", "beams")
_FILTERS = {"top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}
_OWN = ("temperature", *_FILTERS.values(), "beams", "length_penalty", "early_stopping")
BESIDE = ("speculate", "best_of", "logprobs")  # reset for a beam search; a grammar is not
_PLAIN = SamplingParams()
_FIRST = {
    "greedy": SamplingParams(temperature=0.0),
    "sampling": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(temperature=0.7, top_k=40),
    "top-p": SamplingParams(temperature=0.7, top_p=0.95),
    "min-p": SamplingParams(temperature=0.7, min_p=0.05),
    "beams": SamplingParams(beams=4),
}


def name_of(params: SamplingParams) -> str:
    """The name of the strategy of these parameters."""
    if params.beams > 1:
        return "beams"
    if params.greedy:
        return "greedy"
    used = [name for name, field in _FILTERS.items() if getattr(params, field) != getattr(_PLAIN, field)]
    return used[0] if len(used) == 1 else "sampling"


Covered = dict[str, tuple[Any, Any]]  # a chat's own values that a preset replaced, and by what


def between(params: SamplingParams, other: SamplingParams) -> int:
    """How many places further the strategy of the other parameters is."""
    return NAMES.index(name_of(other)) - NAMES.index(name_of(params))


class Strategies:
    """Remembers the settings of each strategy in a chat, to restore them on return."""

    def __init__(self, own: SamplingParams | None = None) -> None:
        self.own = own  # the newest settings that no preset has
        self.covered: Covered | None = None  # None: not known, as after a restart
        self._last = dict(_FIRST)
        self._followed = _PLAIN  # the newest settings without beam search

    def observe(self, params: SamplingParams) -> None:
        self._last[name_of(params)] = params
        if params.beams == 1:
            self._followed = params

    def with_strategy(self, params: SamplingParams, by: int) -> SamplingParams:
        """Return the parameters with the strategy `by` places further. Raises BadParams."""
        name = NAMES[(NAMES.index(name_of(params)) + by) % len(NAMES)]
        source = self._last[name]
        changes = {field: getattr(source, field) for field in _OWN}
        if name == "beams":
            if params.grammar is not None:
                raise BadParams("beams", "beam search does not support a grammar; remove the grammar first")
            changes |= {field: getattr(_PLAIN, field) for field in BESIDE}
        elif params.beams > 1:
            changes |= {field: getattr(self._followed, field) for field in BESIDE}
        return params.changed(**changes)
