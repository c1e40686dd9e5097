"""Replicas of a fleet are drained, stopped and started from the screen, and shown one by one."""

from collections.abc import Callable
from typing import Any

from engine.api.commands import Command, DrainReplica, StartReplica
from engine.api.events import ReplicaChanged
from engine.api.snapshot import ReplicaView, Snapshot
from minichat.clients.fake import FakeBackend
from minichat.features.replicas import REPLICAS, steps
from minichat.ui.monitor import EngineLine
from tests.app.conftest import run, snapshot


def view(number: int, state: str = "ready") -> ReplicaView:
    return ReplicaView(number, state, "", "cpu", 2, 1, 32, 4, 8)


class FleetBackend(FakeBackend):
    """Two replicas that change their states at once."""

    def __init__(self) -> None:
        super().__init__([snapshot(replicas=(view(0), view(1)))])
        self.sent: list[Command[Any]] = []

    async def send(self, command: Command[Any]) -> Any:
        if not isinstance(command, DrainReplica | StartReplica):
            return await super().send(command)
        self.sent.append(command)
        state = "draining" if isinstance(command, DrainReplica) else "ready"
        views = (view(n, state if n == command.replica else "ready") for n in (0, 1))
        self.become(snapshot(replicas=tuple(views)))
        return None

    def become(self, shot: Snapshot) -> None:
        self._snapshots = (shot,)
        self.emit(ReplicaChanged(0, 0.0, 1, shot.replicas[1].state, ""))


@run
async def test_a_replica_is_drained_and_taken_back_from_the_palette(bench: Callable[..., Any]) -> None:
    backend = FleetBackend()
    async with bench((130, 50), backend=backend) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("ctrl+p", *"replica 1 and stop", "enter")
        await it.until(lambda: backend.sent == [DrainReplica(1, stop=True)])
        await it.until(lambda: it.main.engine.latest.replicas[1].state == "draining")
        await it.pilot.press("ctrl+p", *"stop or start", "enter")
        await it.until(lambda: "draining, 2 running, 1 waiting" in it.screen_text())
        assert "Drain replica 0 and restart it" in it.screen_text()
        await it.pilot.press("down", "down", "enter")
        await it.until(lambda: backend.sent[1:] == [StartReplica(1)])


@run
async def test_the_map_shows_one_replica_after_the_other(bench: Callable[..., Any]) -> None:
    async with bench((130, 50), backend=FleetBackend()) as it:
        await it.until(lambda: "2 replicas" in it.screen_text())
        await it.pilot.press("alt+m", "r")
        await it.until(lambda: "replica 0" in it.screen_text())
        await it.pilot.press("r", "r")
        await it.until(lambda: "2 replicas" in it.screen_text())


def test_what_can_be_done_depends_on_the_state() -> None:
    sent = {state: [command for _, command in steps(view(1, state))] for state in ("ready", "stopped")}
    assert sent == {"ready": [DrainReplica(1), DrainReplica(1, stop=True)], "stopped": [StartReplica(1)]}
    assert [command for _, command in steps(view(1, "restarting"))] == [DrainReplica(1, stop=True)]
    assert [command for _, command in steps(view(1, "dead"))] == [StartReplica(1)]


@run
async def test_one_engine_has_no_replicas(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.until(lambda: it.main.engine.latest)
        assert not REPLICAS.commands[0].enabled(it.app.context)
        assert REPLICAS.offers is not None and not [*REPLICAS.offers(it.app.context)]


@run
async def test_a_fleet_whose_replicas_are_all_stopped_is_not_ready(bench: Callable[..., Any]) -> None:
    backend = FleetBackend()
    async with bench((120, 40), backend=backend) as it:
        await it.until(lambda: "ready" in it.screen_text().splitlines()[-1])
        views = view(0, "stopped"), view(1, "stopped")
        backend.become(snapshot(state="stopped", error="the engine was stopped", replicas=views))
        await it.until(lambda: "no engine" in it.screen_text().splitlines()[-1])
        backend.become(snapshot(replicas=(view(0), view(1))))
        await it.until(lambda: "ready" in it.screen_text().splitlines()[-1])


@run
async def test_the_line_has_the_figures_of_a_replica_that_drains_beside_a_lost_one(
    bench: Callable[..., Any],
) -> None:
    lost = view(0, "dead")._replace(error="out of memory")
    shot = snapshot(1, (0,), state="draining", error="out of memory", replicas=(lost, view(1, "draining")))
    async with bench((100, 24), backend=FleetBackend()) as it:
        line = it.app.context.part(EngineLine)
        it.main.show_snapshot(shot)
        await it.until(lambda: "D 1" in str(line.render()))
        it.main.show_snapshot(shot.ended("out of memory"))
        await it.until(lambda: "no engine: out of memory" in str(line.render()))
