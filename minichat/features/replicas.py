"""The replicas of a fleet: drain one, stop it, start it again."""

from collections.abc import Iterator
from functools import partial

from textual.content import Content

from engine.api.commands import Command, DrainReplica, StartReplica
from engine.api.snapshot import ReplicaView
from minichat.features.feature import Context, Feature, Offer, ScreenCommand
from minichat.ui import sending
from minichat.ui.dialogs.pick import Choice, PickScreen

Step = tuple[str, Command[None]]  # its words, and what it sends


def steps(replica: ReplicaView) -> list[Step]:
    """What can be done with a replica in its present state."""
    number = replica.number
    restart = (f"Drain replica {number} and restart it", DrainReplica(number))
    stop = (f"Drain replica {number} and stop it", DrainReplica(number, stop=True))
    if replica.state == "draining":
        return [(f"Send prompts to replica {number} again", StartReplica(number))]
    if replica.state in ("stopped", "dead"):
        return [(f"Start replica {number}", StartReplica(number))]
    return [stop] if replica.state == "restarting" else [restart, stop]


def choose(context: Context) -> None:
    """List the replicas with their states, and what can be done with each."""

    def take(command: Command[None] | None) -> None:
        if command is not None:
            _send(context, command)

    replicas = _replicas(context)
    choices = [_choice(each, words, command) for each in replicas for words, command in steps(each)]
    context.app.push_screen(PickScreen("Replicas of the fleet", lambda _: choices), take)


def _choice(replica: ReplicaView, words: str, command: Command[None]) -> Choice[Command[None]]:
    facts = f"{replica.state}, {replica.running} running, {replica.waiting} waiting"
    return Choice(Content.assemble(f" {words:36} ", (facts, "$text-muted")), command)


def _replicas(context: Context) -> tuple[ReplicaView, ...]:
    return context.engine.latest.replicas if context.engine.latest else ()


def _offers(context: Context) -> Iterator[Offer]:
    """A palette entry for each."""
    for each in _replicas(context):
        for words, command in steps(each):
            yield words, "Engine", partial(_send, context, command)


def _send(context: Context, command: Command[None]) -> None:
    sending.ask(context, context.program.backend.send(command))


REPLICAS = Feature(
    name="replicas",
    title="Replicas",
    commands=(
        ScreenCommand(
            "engine.replicas",
            "View",
            "Drain, stop or start a replica",
            choose,
            enabled=lambda context: bool(_replicas(context)),
        ),
    ),
    offers=_offers,
)
