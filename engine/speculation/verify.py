"""Which drafts stand. The target's own tokens are the judges, so drafts never change what is said."""

from collections.abc import Sequence


def run_of(drawn: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The tokens that one verification brings: of those drawn, all up to the first that its draft missed.

    `drawn` has one more than `drafts`: what was drawn at a place is right if all drafts before it were.
    """
    right = 0
    while right < len(drafts) and drawn[right] == drafts[right]:
        right += 1
    return list(drawn[: right + 1])
