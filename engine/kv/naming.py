"""The names of blocks: hashes of their contents, and of all that these depend on."""

import secrets
from collections.abc import Sequence

from engine.api.cache_spec import KvSchemeName
from engine.api.request import Request
from engine.kv import prefix
from engine.kv.groups import BlockGroups
from engine.kv.window import GONE


class BlockNames:
    """Names blocks by the tokens before their end, and by what computes them."""

    def __init__(self, groups: BlockGroups, kv_scheme: KvSchemeName) -> None:
        self.groups = groups
        self.group_count = groups.count  # blocks for every `block_size` tokens
        self.model = secrets.token_bytes(16)  # not known: no other process finds these blocks
        self.private = b""  # set while no other process may find blocks
        self.weights = "none"
        self.kv_scheme = kv_scheme
        self.epoch = 0  # how often the weights have changed

    def identify(self, model: bytes, weights: str) -> None:
        """Name blocks by what computes them: `model` is a hash of it, apart from the two schemes."""
        self.model, self.weights = model, weights

    def key(self, chain: Sequence[bytes], at: int) -> bytes:
        """The key of the block at this index, given those of the first group's."""
        block, group = divmod(at, self.group_count)
        return prefix.of_group(chain[block], group) if group else chain[block]

    def names_of(self, request: Request, computed: int) -> tuple[bytes, ...]:
        """The keys of the blocks of so many tokens that a request holds, partly filled ones included.

        Empty if tokens alone do not identify the contents: blocks from older weights, or a shared last block.
        """
        tokens = request.tokens[:computed]
        if not tokens or request.skipped or request.shares_tail or request.epoch != self.epoch:
            return ()
        full = len(tokens) // self.groups.block_size
        self.extend_chain(request, full)
        chain = request.chain[:full]
        if rest := tokens[full * self.groups.block_size :]:
            chain.append(prefix.extend(chain[-1] if chain else self._root(request), rest))
        if self.groups.plain:
            return tuple(chain)
        written = enumerate(request.blocks[: len(chain) * self.group_count])
        return tuple(self.key(chain, at) for at, block in written if block != GONE)

    def keys(self, request: Request) -> list[bytes]:
        """The keys of all blocks that the request's tokens fill, in every group."""
        return [self.key(request.chain, at) for at in range(len(request.chain) * self.group_count)]

    def extend_chain(self, request: Request, count: int) -> None:
        start = request.chain[-1] if request.chain else self._root(request)
        prefix.extend_chain(request.chain, start, request.tokens, self.groups.block_size, count)

    def _root(self, request: Request) -> bytes:
        return prefix.root(*self.root, request.salt, request.adapter.digest)

    @property
    def root(self) -> tuple[bytes, bytes, str, str]:
        """What all names depend on, apart from a request's own salt and adapter."""
        return self.model, self.private, self.weights, self.kv_scheme
