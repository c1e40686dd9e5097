"""The presets as a ring, for Left and Right."""

from collections.abc import Sequence

from engine.api.errors import BadParams
from engine.api.params import SamplingParams
from minichat.session.decoding import Preset, in_words, preset_of


def next_in(
    ring: Sequence[Preset], named: Sequence[Preset], place: int, by: int, own: SamplingParams
) -> tuple[SamplingParams | None, str]:
    """The settings of the next preset, and what to say of those that the chat's `own` values forbid.

    Those with the values of another one, which would be shown instead, are passed over, too. `ring`: the
    `named` presets, and perhaps the unsaved settings.
    """
    forbidden: list[str] = []
    for _ in ring:
        place = (place + by) % len(ring)
        try:
            params = ring[place].apply(own)
        except BadParams as error:
            forbidden.append(f"{ring[place].name} was passed over: {in_words(error)}")
            continue
        if preset_of(params, named) is (ring[place] if place < len(named) else None):
            return params, "; ".join(forbidden)
    return None, "; ".join(forbidden)
