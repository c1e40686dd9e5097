"""Maps each command to the engine call that runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.api import commands
from engine.api.commands import Accepted, Command
from engine.api.errors import BadInput
from engine.api.events import BlocksSent
from engine.api.params import Grammar, SamplingParams
from engine.models.adapters.find import find_adapter
from engine.scheduling.scheduler import Scheduler
from engine.serving.engine import Engine
from engine.serving.reply import Sink
from engine.serving.reports.blocks import start_reports


@dataclass(frozen=True, slots=True)
class Handler:
    """`run` takes the engine, the command, and the sink if the command starts a request."""

    run: Callable[..., Any]
    concurrent: bool = False  # run on a helper thread, concurrently with the steps
    first: Callable[[Engine, Any], Callable[[], object] | None] | None = None  # run first, on a helper thread


def _submit(engine: Engine, command: commands.Submit, sink: Sink) -> Accepted:
    waiting, sending = engine.scheduler.waiting, engine.scheduler.transfers.sending
    if command.sends is not None:
        sending.check()
    id = engine.submit(
        command.prompt,
        command.params,
        sink,
        priority=command.priority,
        deadline=command.deadline,
        salt=command.salt,
        continues=command.continues,
        reply_prefix=command.reply_prefix,
        chat=command.chat,
        adapter=command.adapter,
    )
    request = engine.scheduler.requests[id]
    if command.held:
        waiting.hold(request)
    if command.sends is not None:
        sending.add(request, command.sends, partial(_report_sent, engine.scheduler, id))
    return Accepted(id, len(command.prompt))


def _report_sent(scheduler: Scheduler, id: int, blocks: int) -> None:
    way = scheduler.transfers.sending.way
    scheduler.emit(BlocksSent(scheduler.step, scheduler.clock(), id, blocks, way))


def _proceed(engine: Engine, command: commands.Proceed) -> None:
    if (request := engine.scheduler.requests.get(command.id)) is not None:
        engine.scheduler.waiting.proceed(request)


def _fork(engine: Engine, command: commands.Fork, sink: Sink) -> Accepted:
    id = engine.fork(command.id, sink, command.params, command.chat)
    return Accepted(id, engine.length(id))


def _abort(engine: Engine, command: commands.Abort) -> None:
    for id in command.ids:
        engine.abort(id)


def _no_fleet(engine: Engine, command: Command[None]) -> None:
    raise BadInput("this engine is not a replica of a fleet; `minichat serve --replicas N` makes one")


def _guided_by_params(engine: Engine, command: Any) -> Callable[[], object] | None:
    params = command.params
    return partial(engine.check_guided, params) if params and params.guided else None


def _guided_by_changes(engine: Engine, command: commands.Update) -> Callable[[], object] | None:
    """Compile a grammar ahead on a helper thread. The engine itself rejects values that are no grammar."""
    grammar = command.changes.get("grammar")
    if not isinstance(grammar, Grammar):
        return None
    return partial(engine.check_guided, SamplingParams(grammar=grammar))


def _load_adapter(engine: Engine, command: commands.LoadAdapter) -> None:
    engine.load_adapter(command.name, find_adapter(command.path))


def _read_adapter(engine: Engine, command: commands.LoadAdapter) -> Callable[[], object]:
    """Find, fetch and read the files on a helper thread, so that steps continue."""
    return lambda: engine.read_adapter(command.name, find_adapter(command.path))


HANDLERS: dict[type[Command[Any]], Handler] = {
    commands.Submit: Handler(_submit, first=_guided_by_params),
    commands.Fork: Handler(_fork, first=_guided_by_params),
    commands.Update: Handler(lambda engine, c: engine.update(c.id, **c.changes), first=_guided_by_changes),
    commands.Abort: Handler(_abort),
    commands.Proceed: Handler(_proceed),
    commands.Preempt: Handler(lambda engine, c: engine.preempt(c.id)),
    commands.SetSwitch: Handler(lambda engine, c: engine.set_switch(c.name, c.on)),
    commands.SetLatencyTarget: Handler(lambda engine, c: engine.set_latency_target(c.seconds)),
    commands.SetMaxSlowdown: Handler(lambda engine, c: engine.scheduler.pace.limit(c.factor)),
    commands.SetQuantization: Handler(lambda engine, c: engine.set_quantization(c.scheme)),
    commands.CancelQuantization: Handler(lambda engine, c: engine.cancel_quantization()),
    commands.SetKvScheme: Handler(lambda engine, c: engine.set_kv_scheme(c.scheme)),
    commands.LoadAdapter: Handler(_load_adapter, first=_read_adapter),
    commands.DropAdapter: Handler(lambda engine, c: engine.drop_adapter(c.name)),
    commands.Warm: Handler(lambda engine, c: engine.warm()),
    commands.GetSnapshot: Handler(lambda engine, c: engine.snapshot()),
    commands.ReportBlocks: Handler(lambda engine, c: start_reports(engine.scheduler, engine.adapters)),
    commands.DrainReplica: Handler(_no_fleet),
    commands.StartReplica: Handler(_no_fleet),
    commands.MeasureSpeeds: Handler(lambda engine, c: engine.runner.speeds(), concurrent=True),
}
