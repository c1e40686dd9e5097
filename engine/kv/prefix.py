"""Hashes that identify block contents: a chain, each hash over its parent's and the block's tokens."""

from array import array
from collections.abc import Sequence
from hashlib import sha256


def root(*parts: object) -> bytes:
    """The start of a chain: a hash of everything that must match for reuse, such as weights and salt."""
    return sha256(repr(parts).encode()).digest()


def short(key: bytes) -> str:
    """A key shortened for reports: still unique among the blocks of all engines."""
    return key[:8].hex()


def extend(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block of tokens that follows `parent`. It changes as a partly filled block fills."""
    return sha256(parent + array("q", tokens).tobytes()).digest()


def extend_chain(
    chain: list[bytes], start: bytes, tokens: Sequence[int], block_size: int, blocks: int
) -> None:
    """Extend a chain in place until it has keys for `blocks` blocks of `tokens`."""
    if (begin := len(chain)) >= blocks:
        return
    written = array("q", tokens[begin * block_size : blocks * block_size])
    content, size = memoryview(written.tobytes()), written.itemsize * block_size
    key = chain[-1] if chain else start
    for at in range(0, (blocks - begin) * size, size):
        key = sha256(key + content[at : at + size]).digest()
        chain.append(key)


def of_group(key: bytes, group: int) -> bytes:
    """The key of a group's block of the same tokens. The first group has the chain's own keys."""
    return bytes((key[0] ^ group,)) + key[1:]
