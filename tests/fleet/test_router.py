"""The router against a slow oracle that keeps every fact it has seen, and recomputes all from these."""

from array import array
from dataclasses import dataclass, field
from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.commands import BlockNaming
from engine.fleet.router import EVENNESS, Placement, Router

SIZE = 16
ROOTS = [(bytes([number // 2]), b"", "none", "none") for number in range(4)]  # two pairs with equal names


def block_names(root: tuple[bytes, bytes, str, str], salt: bytes, tokens: list[int]) -> list[str]:
    """The names of all whole blocks before the last token."""
    key, names = sha256(repr((*root, salt, b"")).encode()).digest(), list[str]()
    for end in range(SIZE, len(tokens), SIZE):
        key = sha256(key + array("q", tokens[end - SIZE : end]).tobytes()).digest()
        names.append(key[:8].hex())
    return names


@dataclass
class OracleReplica:
    reports: list[tuple[str, bool]] = field(default_factory=list)
    before: int = 0  # tokens that count as computed when it joins
    routes: list[tuple[Placement, list[str]]] = field(default_factory=list)
    started: list[Placement] = field(default_factory=list)
    ended: list[Placement] = field(default_factory=list)

    def cached(self) -> set[str]:
        return {name for name, there in dict(self.reports).items() if there}

    def held(self) -> set[str]:
        return {name for route, names in self.routes if route not in self.ended for name in names}

    def computed(self) -> int:
        return self.before + sum(route.missing for route, _ in self.routes)

    def cost(self, missing: int) -> int:
        live = [route for route, _ in self.routes if route not in self.ended]
        queue = sum(route.missing for route in live if route not in self.started)
        return missing + queue // 4 + SIZE * len(live)


class Oracle:
    def __init__(self) -> None:
        self.replicas: dict[int, OracleReplica] = {}

    def expected(self, tokens: list[int], salt: bytes) -> tuple[int, int, int] | None:
        """The replica, and how many blocks are there and at best anywhere."""
        ranked = []
        for number, each in self.replicas.items():
            names, there = block_names(ROOTS[number], salt, tokens), each.cached() | each.held()
            found = next((at for at, name in enumerate(names) if name not in there), len(names))
            least = min(other.computed() for other in self.replicas.values())
            uneven = (each.computed() - least) // EVENNESS
            ranked.append((each.cost(len(tokens) - SIZE * found) + uneven, number, found))
        if not ranked:
            return None
        return min(ranked)[1], min(ranked)[2], max(found for *_, found in ranked)


PROMPTS = st.builds(
    lambda branch, shared, rest, odd: [*range(shared * SIZE), *[branch] * (rest * SIZE), *[7] * odd],
    st.integers(90, 92),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, SIZE),
)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["route"] * 4 + ["start", "end", "publish", "publish", "drop", "put", "remove"]),
        st.integers(0, 3),
        PROMPTS,
        st.sampled_from([b"", b"", b"other"]),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_choices_equal_the_oracles(operations: list[tuple[str, int, list[int], bytes]]) -> None:
    router, oracle = Router(), Oracle()
    routes: list[Placement] = []
    for number in (0, 1, 2):
        router.put(number, BlockNaming(ROOTS[number], SIZE, ()))
        oracle.replicas[number] = OracleReplica()
    for what, number, prompt, salt in operations:
        known = oracle.replicas.get(number)
        names = block_names(ROOTS[number], salt, prompt)
        if what == "route":
            route, wanted = router.route(prompt, salt), oracle.expected(prompt, salt)
            assert (route and (route.replica, route.cached, route.best)) == wanted
            if route:
                routes.append(route)
                own = block_names(ROOTS[route.replica], salt, prompt)
                oracle.replicas[route.replica].routes.append((route, own))
                assert route.blocks == len(own)
        elif what in ("start", "end") and routes:
            route = routes[(number * 7) % len(routes)]
            (router.started if what == "start" else router.ended)(route)
            if place := oracle.replicas.get(route.replica):
                place.started.append(route)
                if what == "end":
                    place.ended.append(route)
        elif what == "publish":
            router.report(number, names, ())
            if known:
                known.reports += [(name, True) for name in names]
        elif what == "drop":
            router.report(number, (), names[1:])
            if known:
                known.reports += [(name, False) for name in names[1:]]
        elif what == "put":  # a new process, or new names of one that runs
            router.put(number, BlockNaming(ROOTS[number], SIZE, tuple(names)))
            least = min((each.computed() for each in oracle.replicas.values()), default=0)
            place = OracleReplica([(name, True) for name in names], known.before if known else least)
            oracle.replicas[number] = place
            if known:
                place.routes, place.started, place.ended = known.routes, known.started, known.ended
        elif what == "remove":
            router.remove(number)
            oracle.replicas.pop(number, None)


def put(router: Router, number: int) -> None:
    router.put(number, BlockNaming(ROOTS[0], SIZE, ()))


def test_a_prompt_follows_its_blocks_until_the_queue_costs_more() -> None:
    router, prompt = Router(), [*range(10 * SIZE + 1)]
    put(router, 0)
    put(router, 1)
    first = router.route(prompt)
    assert first
    router.report(first.replica, block_names(ROOTS[0], b"", prompt), ())
    router.ended(first)
    chosen = [router.route([*prompt, *[1000 + tail] * 60]) for tail in range(6)]
    # Each has 61 tokens to compute, and replica 1 would compute 221. A reply that runs counts as a block, and
    # as one token four of the queue, or 64 that replica 0 has computed.
    costs = [61 + count * 61 // 4 + count * SIZE + (161 + count * 61) // 64 for count in (4, 5)]
    assert costs[0] < 221 < costs[1]
    assert [each and (each.replica, each.cached, each.best) for each in chosen] == [
        *[(0, 10, 10)] * 5,
        (1, 0, 10),
    ]


def test_blocks_that_are_being_computed_count_as_there() -> None:
    router, prompt = Router(), [*range(20 * SIZE + 1)]
    put(router, 0)
    put(router, 1)
    routes = [router.route([*prompt, number]) for number in range(3)]
    # The others wait for the first: computing it again would take as long, and delay others.
    assert [each and (each.replica, each.cached) for each in routes] == [(0, 0), (0, 20), (0, 20)]
    for each in routes:
        assert each
        router.ended(each)
    again = router.route(prompt)  # the replicas never reported the blocks
    assert again
    assert again.cached == 0


def test_a_start_that_all_prompts_share_does_not_keep_them_at_one_replica() -> None:
    router, used = Router(), list[int]()
    for number in range(4):
        put(router, number)
    for tail in range(80):
        route = router.route([*range(2 * SIZE), *[1000 + tail] * 500])
        assert route
        router.report(route.replica, route.names, ())
        router.ended(route)
        used.append(route.replica)
    assert min(used.count(number) for number in range(4)) > 10


def test_without_replicas_there_is_no_route() -> None:
    router = Router()
    assert router.route([1, 2, 3]) is None
    put(router, 3)
    found = router.route([1, 2, 3])
    router.remove(3)
    assert found
    router.ended(found)
    assert router.route([1, 2, 3]) is None


def test_a_route_of_an_earlier_process_does_not_count_for_the_next() -> None:
    router = Router()
    put(router, 0)
    old = router.route([*range(100)])
    router.remove(0)
    put(router, 0)
    new = router.route([*range(50)])
    assert old
    assert new
    router.ended(old)
    assert router.queue(0) == 50
    router.started(new)
    router.ended(new)
    assert router.queue(0) == 0


def test_replicas_apart_are_chosen_only_among_themselves() -> None:
    router, prompt = Router(apart=(0, 1)), [*range(4 * SIZE + 1)]
    for number in range(4):
        put(router, number)
    routes = [router.route(prompt, apart=number % 2 == 0) for number in range(8)]
    assert [each and each.replica // 2 for each in routes] == [0, 1] * 4
    assert [each and each.best for each in routes][1] == 0, "the blocks of the other group do not count"
    for number in (0, 1):
        router.remove(number)
    assert router.route(prompt, apart=True) is None
    put(router, 1)
    found = router.route(prompt, apart=True)
    assert found
    assert (found.replica, found.cached) == (1, 0)


def test_blocks_that_are_there_are_told_from_those_being_computed() -> None:
    router, prompt = Router(), [*range(6 * SIZE + 1)]
    put(router, 0)
    first = router.route(prompt)
    assert first
    router.report(0, first.names[:4], ())
    again = router.route(prompt)
    assert again
    assert (again.cached, again.there) == (6, 4)


def test_a_new_replica_starts_with_what_its_own_group_has_computed() -> None:
    router = Router(apart=(0, 1))
    put(router, 0)
    put(router, 2)
    for tail in range(10):
        route = router.route([*[1000 + tail] * 6000], apart=True)
        assert route
        router.ended(route)
    put(router, 1)
    chosen = [router.route([*[2000 + tail] * 100], apart=True) for tail in range(4)]
    assert {each and each.replica for each in chosen} == {0, 1}, "the new one would get all for a while"
