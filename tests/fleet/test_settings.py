"""Settings that change while replicas of a fleet end and start again. The replicas are fakes."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.commands import BlockNaming, Command, ReportBlocks, SetLatencyTarget, SetSwitch
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.events import Bus, Event, Handler, ReplicaChanged, Restarted, Restarting
from engine.api.snapshot import Snapshot
from engine.dry import dry_engine
from engine.fleet.fleet import Fleet
from engine.fleet.futures import refusal
from engine.host.client import EngineClient, Sink
from engine.text.bare import BareTokenizer
from engine.text.chat import ChatFormat
from engine.text.tokenizer import Tokenizer

SHOT = dry_engine(EngineConfig(model="pocket", blocks=16)).snapshot()
NAMES = BlockNaming((b"", b"", "", ""), 16, ())


class Replica(EngineClient):
    """Answers one command at a time, in their order, and only when the test says so."""

    def __init__(self) -> None:
        self._chat, self._bus = ChatFormat(cast(Tokenizer, BareTokenizer(9))), Bus()
        self._waiting = deque[tuple[Command[Any], Future[Any]]]()
        self._lives = True
        self._next: Callable[[], None] = self.die
        self.settings = dict[str, Command[Any]]()
        self.room = False

    def send(self, command: Command[Any], sink: Sink | None = None) -> Future[Any]:
        if not self._lives:
            return refusal(EngineDead("it was killed"))
        answer = Future[Any]()
        if isinstance(command, ReportBlocks):
            answer.set_result(NAMES)
        else:
            self._waiting.append((command, answer))
        return answer

    def answer(self) -> None:
        if self._waiting:
            command, answer = self._waiting.popleft()
            if command == UNKNOWN or (command == LARGE and not self.room):
                answer.set_exception(BadInput("there is no such switch"))
            else:
                self.settings[command.verb] = command
                answer.set_result(None)

    def proceed(self) -> None:
        """To the next part of its life."""
        self._next()

    def die(self) -> None:
        self._lives, self._next = False, self.report_end
        while self._waiting:
            self._waiting.popleft()[1].set_exception(EngineDead("it was killed"))

    def report_end(self) -> None:
        self._next = self.revive
        self._bus.emit(Restarting(0, 0.0, "it was killed", 0.0))

    def revive(self) -> None:
        self._lives, self._next = True, self.report_start
        self.settings.clear()

    def report_start(self) -> None:
        self._next = self.die
        self._bus.emit(Restarted(0, 0.0, 0.0))

    def settle(self) -> None:
        """Run, and answer all."""
        while self._next != self.die:
            self.proceed()
        while self._waiting:
            self.answer()

    def snapshot(self) -> Snapshot:
        return SHOT

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        return self._bus.subscribe(handler)

    def close(self) -> None:
        pass


UNKNOWN, LARGE = SetSwitch("unknown", True), SetSwitch("large", True)
ON, OFF = SetSwitch("prefix_cache", True), SetSwitch("prefix_cache", False)
SETTINGS = st.sampled_from([ON, OFF, SetLatencyTarget(1.0), SetLatencyTarget(2.0), UNKNOWN])
OF_A_REPLICA = st.tuples(st.sampled_from([Replica.answer, Replica.proceed]), st.integers(0, 1))


@given(steps=st.lists(SETTINGS | OF_A_REPLICA, max_size=24))
def test_all_replicas_have_the_same_settings(steps: list[Any]) -> None:
    replicas = [Replica(), Replica()]
    fleet = Fleet(dict(enumerate(replicas)))
    newest = dict[str, tuple[Command[Any], Future[Any]]]()
    for step in steps:
        if isinstance(step, Command):
            newest[step.verb] = step, fleet.send(step)
        else:
            act, number = step
            act(replicas[number])
    for _ in range(2):  # the second one may get a setting again when the first one starts
        for each in replicas:
            each.settle()
    one, other = [each.settings for each in replicas]
    assert one == other
    for verb, (command, answer) in newest.items():
        assert answer.exception() or one[verb] == command
    fleet.close()


def test_a_setting_that_others_have_not_answered_when_a_replica_starts_again() -> None:
    replicas = [Replica(), Replica()]
    fleet = Fleet(dict(enumerate(replicas)))
    replicas[1].die()
    replicas[1].report_end()
    fleet.send(OFF)
    for each in replicas[::-1]:
        each.settle()
    assert [each.settings[OFF.verb] for each in replicas] == [OFF, OFF]
    fleet.close()


def test_a_setting_that_comes_when_a_replica_is_ready_again_is_the_newest() -> None:
    replicas = [Replica(), Replica()]
    fleet = Fleet(dict(enumerate(replicas)))
    fleet.send(ON)
    for each in replicas:
        each.settle()

    def set_off(event: Event) -> None:
        if isinstance(event, ReplicaChanged) and event.state == "ready":
            fleet.send(OFF)

    fleet.subscribe(set_off)
    replicas[1].die()
    for each in replicas[::-1]:
        each.settle()
    assert [each.settings[OFF.verb] for each in replicas] == [OFF, OFF]
    fleet.close()


def test_a_setting_that_one_replica_has_when_another_ends_is_kept() -> None:
    """Its sender learns that not all have it, but the one that starts again gets it."""
    replicas = [Replica(), Replica()]
    fleet = Fleet(dict(enumerate(replicas)))
    answer = fleet.send(OFF)
    replicas[1].die()
    replicas[0].answer()
    with pytest.raises(EngineError, match="killed"):
        answer.result(0)
    replicas[1].settle()
    assert [each.settings[OFF.verb] for each in replicas] == [OFF, OFF]
    fleet.close()


def test_a_setting_that_kills_all_replicas_is_not_set_again() -> None:
    replicas = [Replica(), Replica()]
    fleet = Fleet(dict(enumerate(replicas)))
    fleet.send(OFF)
    for each in replicas:
        each.die()
    for each in replicas:
        each.settle()
    assert [each.settings for each in replicas] == [{}, {}]
    fleet.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_setting_that_only_some_replicas_have_taken_is_logged(
    restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    replicas = [Replica(), Replica()]
    fleet = Fleet(dict(enumerate(replicas)))
    replicas[1].room = True
    if restarts:
        replicas[1].die()
        replicas[1].report_end()
    answer = fleet.send(LARGE)
    replicas[1].settle()
    assert not caplog.messages
    replicas[0].settle()
    with pytest.raises(BadInput):
        answer.result(0)
    what, why = "SetSwitch(name='large', on=True)", "there is no such switch"
    assert caplog.messages == [f"{what} was refused by replica 0 ({why}), and stays set in replica 1"]
    fleet.close()
