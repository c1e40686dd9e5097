"""The waiting queue, and how a snapshot shows it."""

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.scheduling import policy
from engine.scheduling.queue import WaitingQueue
from tests.engine.ledger import ledger_engine
from tests.outputs import Output


@given(st.data())
def test_the_first_are_those_that_leave_first(data: st.DataObject) -> None:
    """With entries in the heap that are out of date, as after aborts, and twice, as after a preemption."""
    ranks: dict[int, int] = {}
    queue = WaitingQueue(lambda request: (ranks[request.id],))
    requests = [Request(id, [1], 1, SamplingParams(), 0, 9) for id in range(30)]
    for each in requests:
        ranks[each.id] = data.draw(st.integers(0, 9))
        queue.push(each)
    for id in data.draw(st.sets(st.integers(0, 29))):
        queue.remove(requests[id])
        if data.draw(st.booleans()):
            queue.push(requests[id])
    count = data.draw(st.integers(0, 31))
    first = queue.first(count)
    left = []
    while (head := queue.head()) and len(left) < count:
        left.append(head)
        queue.remove(head)
    assert first == left


class Shortest:
    name: ClassVar[str] = "shortest"

    def rank(self, request: Request) -> tuple[float, ...]:
        return request.prompt_len, request.id


def test_a_snapshot_lists_the_queue_in_the_order_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policy.POLICIES, "shortest", Shortest)
    engine = ledger_engine(blocks=2, policy="shortest")
    for prompt in (20, 9, 7, 8):
        tokens = [prompt, *range(1, prompt)]
        engine.submit(tokens, SamplingParams(max_tokens=9), Output())
        engine.step()
    shown = [each for each in engine.snapshot().requests if each.phase == "waiting"]
    assert [each.prompt for each in shown] == [7, 8, 9]
    assert [each.why for each in shown[1:]] == ["queued", "queued"], "9 was the first when it was looked at"
    assert "needs 1 block" in shown[0].why
