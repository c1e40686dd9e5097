"""Verification of drafts against the target model's tokens, so that drafts never change the output."""

from collections.abc import Sequence


def run_of(sampled: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """Return the tokens that one verification yields: the sampled tokens up to the first mismatch.

    `sampled` has one more token than `drafts`. A sampled token is valid if all drafts before it match.
    """
    accepted = 0
    while accepted < len(drafts) and sampled[accepted] == drafts[accepted]:
        accepted += 1
    return list(sampled[: accepted + 1])
