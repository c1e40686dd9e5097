import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.api.params import SamplingParams
from engine.kv import prefix
from engine.kv.pool import BlockPool
from tests.engine.ledger import drain, ledger_engine
from tests.outputs import Output


class PoolMachine(RuleBasedStateMachine):
    """Whatever the order of allocate, share, publish and free, every block is in exactly one state."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, 16)
        self.tables: dict[int, list[int]] = {}
        self.keys: dict[bytes, int] = {}  # the block that each key was published for
        self.count = 0
        self.pool.journal = {}
        self.reported: set[bytes] = set()

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        if not self.pool.can_allocate(count):
            with pytest.raises(ValueError, match="cannot allocate"):
                self.pool.allocate(count, 0)
            return
        self.count += 1
        self.tables[self.count] = self.pool.allocate(count, self.count)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.tables)))
        self.count += 1
        self.pool.share(self.tables[source])
        self.tables[self.count] = list(self.tables[source])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.tables.pop(data.draw(st.sampled_from(sorted(self.tables)))))

    @precondition(lambda self: any(self.tables.values()))
    @rule(data=st.data(), key=st.binary(min_size=1, max_size=1))
    def publish(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(
            st.sampled_from(sorted({block for table in self.tables.values() for block in table}))
        )
        self.pool.publish(block, key)

    @rule(key=st.binary(min_size=1, max_size=1))
    def find_and_hold(self, key: bytes) -> None:
        block = self.pool.find(key)
        if block is not None and self.pool.place[block] == 0:  # the same entry in every table
            self.count += 1
            self.pool.share([block])
            self.tables[self.count] = [block]

    @rule()
    def report(self) -> None:
        """All journals together say what can be found."""
        assert self.pool.journal is not None
        journal, self.pool.journal = self.pool.journal, {}
        self.reported |= {key for key, findable in journal.items() if findable}
        self.reported -= {key for key, findable in journal.items() if not findable}
        assert self.reported == set(self.pool.keys)

    @rule(blocks=st.sets(st.integers(0, 11)))
    def forget(self, blocks: set[int]) -> None:
        self.pool.forget(blocks)

    @invariant()
    def check_pool(self) -> None:
        self.pool.check(self.tables)


TestPool = PoolMachine.TestCase


def test_the_longest_unused_block_is_evicted_first_and_a_tail_before_its_root() -> None:
    pool = BlockPool(4, 16)
    chains = {name: pool.allocate(2, owner) for owner, name in enumerate("ab")}
    for name, blocks in chains.items():
        for at, block in enumerate(blocks):
            pool.publish(block, f"{name}{at}".encode())
        pool.free(blocks)
    assert pool.cached == pool.available == 4
    pool.allocate(1, 9)
    assert pool.find(b"a1") is None
    assert pool.find(b"a0") is not None
    pool.allocate(2, 9)
    assert pool.find(b"b1") is None
    assert pool.find(b"b0") is not None
    assert pool.evictions == 3


def test_a_cached_block_belongs_to_the_request_that_takes_it_again() -> None:
    """Else the map shows the blocks of a running reply as those of a chat whose reply has ended."""
    engine = ledger_engine(blocks=12)
    prompt, params = [1] * 40, SamplingParams(max_tokens=4, seed=0)
    first = engine.submit(prompt, params, Output())
    drain(engine)
    second = engine.submit(prompt, params, Output())
    engine.step()
    shot = engine.snapshot().blocks
    assert first != second and {*shot.owner[shot.refs > 0].tolist()} == {second}
    third = engine.submit(prompt, params, Output())
    engine.step()
    shot = engine.snapshot().blocks
    assert {*shot.owner[shot.refs > 1].tolist()} == {second}, "a block in use has been taken by another"
    assert third in shot.owner


def test_check_names_the_block_that_is_wrong() -> None:
    pool = BlockPool(4, 16)
    [block] = pool.allocate(1, 0)
    with pytest.raises(AssertionError, match=f"block {block}: 0 holders, 1 counted"):
        pool.check({})


def test_a_key_depends_on_all_earlier_tokens_and_on_the_root() -> None:
    def keys_of(root: bytes, tokens: list[int]) -> list[bytes]:
        chain: list[bytes] = []
        prefix.extend_chain(chain, root, tokens, 4, len(tokens) // 4)
        return chain

    start = prefix.root(0, b"")
    one, two = keys_of(start, [1, 2, 3, 4, 5, 6, 7, 8]), keys_of(start, [9, 2, 3, 4, 5, 6, 7, 8])
    assert len({*one, *two}) == 4
    assert keys_of(start, [1, 2, 3, 4, 0]) == one[:1]
    assert keys_of(prefix.root(1, b""), [1, 2, 3, 4]) != one[:1]
    assert keys_of(prefix.root(0, b"salt"), [1, 2, 3, 4]) != one[:1]
    assert prefix.root(1, b"1") != prefix.root(11, b"")
