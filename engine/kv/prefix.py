"""Names for what a block holds: a chain of hashes, each over its parent and its tokens."""

from array import array
from collections.abc import Sequence
from hashlib import sha256


def root(*parts: object) -> bytes:
    """Where a chain starts: whatever must match for blocks to be the same, such as weights and salt."""
    return sha256(repr(parts).encode()).digest()


def extend(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block of tokens that follows `parent`. One that is not full yet has another key then."""
    return sha256(parent + array("q", tokens).tobytes()).digest()


def lengthen(chain: list[bytes], start: bytes, tokens: Sequence[int], block_size: int, blocks: int) -> None:
    """Extends a chain in place until it names that many blocks of `tokens`."""
    while len(chain) < blocks:
        at = len(chain) * block_size
        chain.append(extend(chain[-1] if chain else start, tokens[at : at + block_size]))
