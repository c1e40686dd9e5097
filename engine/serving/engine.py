"""The engine: schedule a step, launch it, commit the one before. One thread owns it."""

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.api import events
from engine.api.errors import BadInput, BadParams, EngineDead, NoMemory, place
from engine.api.events import Bus, log
from engine.api.params import SamplingParams
from engine.api.request import Finish, Request
from engine.api.snapshot import Change, Snapshot, Switch
from engine.execution.protocol import Runner
from engine.grammar.grammars import Grammars
from engine.scheduling import forks, recovery
from engine.scheduling.policy import set_latency_target
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step
from engine.serving import transfers
from engine.serving.adapters import AdapterRegistry
from engine.serving.flight import Flight, StepCosts
from engine.serving.info import EngineInfo
from engine.serving.lifecycle import Lifecycle
from engine.serving.limits import Limits, check_fork, check_order, check_room
from engine.serving.meters import Meters
from engine.serving.observe import snapshot
from engine.serving.outputs import OutputProcessor
from engine.serving.ranks import ALONE, Ranks
from engine.serving.recordings.recorder import EngineRecording
from engine.serving.recordings.replay import Origin
from engine.serving.reply import Sink, TextStream
from engine.serving.reports.evictions import EvictionReports
from engine.serving.switches import Switches
from engine.text.tokenizer import Tokenizer


class Engine:
    """Accepts requests and computes their replies step by step."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        limits: Limits,
        info: EngineInfo,
        bus: Bus,
        seed: int | None = None,
        first_request: int = 0,
        grammars: Grammars | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.scheduler, self.runner, self.tokenizer = scheduler, runner, tokenizer
        self.limits, self.info, self.bus, self.ranks = limits, info, bus, ranks
        self.clock, self.grammars, self.meters = scheduler.clock, grammars, Meters(info.windows)
        self._cold_grammars: Grammars | None = None  # loaded after the warm-up
        self.error, self.warmed = "", 1.0  # why the engine is dead, or ""; the finished share of a warm-up
        self._number = itertools.count(first_request).__next__
        self.outputs = OutputProcessor(scheduler, self.meters, bus, self.clock, self._number, limits.stop_ids)
        self._seeds, self._costs = random.Random(seed), StepCosts(scheduler, self.meters.forms)
        self._flights: deque[Flight] = deque()
        self._evictions = EvictionReports(scheduler, bus)
        self._recording, self.adapters = EngineRecording(scheduler), AdapterRegistry(scheduler, info.model)
        self._switches, self._lifecycle = Switches(scheduler, runner), Lifecycle(scheduler)

    # Requests and settings

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        sink: Sink,
        *,
        priority: int = 0,
        deadline: float | None = None,
        salt: bytes = b"",
        continues: bool = True,
        reply_prefix: Sequence[int] = (),
        chat: str | None = "",
        adapter: str = "",
    ) -> int:
        """Submit a request; its deltas go to `sink`. `deadline`: seconds from now to its first token.

        `continues`: the reply's text continues the prompt's instead of starting fresh.
        `reply_prefix`: tokens the reply starts with, such as another reply's up to where the two diverge.
        Deltas start after them. Cached blocks that hold them are shared.
        `chat`: whose blocks these are, in tiers that keep them; None: they are not kept.
        `adapter`: the name of a loaded one.
        """
        self._refuse_if_dead()
        self._check(params, prompt, reply_prefix)
        check_order(priority, deadline)
        max_len, now = self.limits.max_len(len(prompt), params), self.clock()
        self.limits.check_queue(len(self.scheduler.waiting))
        request = Request(
            id=self._number(),
            tokens=[*prompt, *reply_prefix],
            prompt_len=len(prompt),
            params=params,
            seed=self._seed(params),
            max_len=max_len,
            arrived=now,
            priority=priority,
            deadline=None if deadline is None else now + deadline,
            salt=salt,
            chat=chat,
            adapter=self.adapters.named(adapter),
        )
        check_room("the start of the reply", len(reply_prefix), "reply", max_len - len(prompt), "said")
        if params.guided and self.grammars:
            self.grammars.check_start(params, reply_prefix)
        text = TextStream(self.tokenizer, self.limits.stop_ids, params, prompt if continues else ())
        text.skip(reply_prefix)
        self.outputs.open(request, text, sink)
        self.scheduler.add(request)
        return request.id

    def fork(
        self, parent: int, sink: Sink, params: SamplingParams | None = None, chat: str | None = None
    ) -> int:
        """Submit a request that continues a running one's tokens and shares its blocks."""
        self._refuse_if_dead()
        source = self.outputs.rows(parent)[0]
        check_fork(parent, source.params.beams if self.outputs.searches(source) else 1, params)
        requested = self.outputs.requested_params(source)
        params = params or requested.changed(n=1, best_of=None, prompt_logprobs=None, pooling="")
        self._check(params)
        max_len = self.limits.max_len(source.prompt_len, params)
        child = forks.child_of(source, self._number(), params, self._seed(params), max_len, self.clock())
        child.chat = source.chat if chat is None else chat
        check_room(f"request {parent}", len(child.tokens), "fork", max_len)
        self.outputs.open(child, self.outputs.written(source).fork(params), sink)
        forks.fork(self.scheduler, source, child)
        return child.id

    def length(self, id: int) -> int:
        """The committed tokens of a request, prompt and reply."""
        return len(self.outputs.rows(id)[0].tokens)

    def update(self, id: int, **changes: object) -> None:
        """Change a request's sampling parameters from the next launched step on.

        A beam search starts from the present text; when it is turned off, its best hypothesis continues.
        """
        source = self.outputs.rows(id)[0]
        params = self.outputs.requested_params(source).changed(**changes)
        self.outputs.check(id, params)
        self._check(params)
        max_len = self.limits.max_len(source.prompt_len, params)
        self.bus.emit(events.Updated(self.scheduler.step, self.clock(), id, tuple(changes)))
        self.outputs.retune(id, params, max_len, seed="seed" in changes)

    def abort(self, id: int) -> None:
        """End a request now. No-op if it has already ended."""
        for request in self.outputs.rows(id, missing=True):
            self.outputs.end(request, Finish.ABORTED)

    def preempt(self, id: int) -> None:
        """Preempt a running request. It resumes when there is room."""
        for request in self.outputs.rows(id):
            self.scheduler.preempt(request)

    def set_switch(self, name: str, on: bool) -> None:
        """Turn a technique on or off from the next step on. Replies do not change."""
        self._switches.turn(name, on, self.runner)

    def set_latency_target(self, seconds: float) -> None:
        set_latency_target(self.scheduler.policy, seconds, self.clock())

    def set_quantization(self, scheme: str) -> None:
        """Change the scheme of the weights. Requests pause and keep their cache.

        `step` does the work, a layer at a time; events and snapshots report progress and the result.
        """
        self._refuse_if_dead()
        self._lifecycle.set_quantization(scheme, self.runner, context=self.limits.context)

    def cancel_quantization(self) -> None:
        """Return to the previous scheme. No-op if no change is in progress."""
        self._lifecycle.cancel()

    def set_kv_scheme(self, scheme: str) -> None:
        """Change the scheme of the cache. No request may be alive; cached blocks are forgotten."""
        self._refuse_if_dead()
        self._drain()  # a step of ended requests may be in flight
        if fit := self._lifecycle.set_kv_scheme(scheme, self.runner, alive=self.outputs.alive):
            self.limits = replace(self.limits, context=fit.context)
            form = self.scheduler.kv.kv_scheme
            self.bus.emit(events.Recached(self.scheduler.step, self.clock(), form, fit.blocks))

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter from its folder. It is faster if `read_adapter` has read it before."""
        self._refuse_if_dead()
        self._drain()
        self.adapters.load(name, folder, self.runner)

    def read_adapter(self, name: str, folder: Path) -> None:
        """Read the files of an adapter for `load_adapter`, from any thread, so that steps continue."""
        self.adapters.prepare(name, folder, self.runner)

    def drop_adapter(self, name: str) -> None:
        """Drop an adapter that no request uses."""
        self._drain()
        self.adapters.drop(name, self.runner)

    @property
    def change(self) -> Change | None:
        """The change of the weights' scheme that is in progress or has failed."""
        return self._lifecycle.change

    @property
    def switches(self) -> tuple[Switch, ...]:
        return self._switches.view(self.runner)

    def snapshot(self) -> Snapshot:
        return snapshot(
            self.scheduler, self.runner, self.meters, self.info, self.limits, error=self.error,
            warmed=self.warmed, switches=self.switches, change=self.change, beams=self.outputs.beams(),
            adapters=self.adapters.view(), ranks=self.ranks,
        )  # fmt: skip

    def warm(self) -> None:
        """Load the vocabulary of grammars once the warm-up is over. Before, that would slow it down."""
        self._cold_grammars = self.grammars

    def after_warm_up(self) -> None:
        cold, self._cold_grammars = self._cold_grammars, None
        if cold is not None:
            cold.warm()

    # The main loop

    @property
    def busy(self) -> bool:
        scheduler, pending = self.scheduler, bool(self._flights) or self._lifecycle.changing is not None
        return len(scheduler.requests) > len(scheduler.waiting.held) or pending or scheduler.transfers.pending

    def pause(self) -> float:
        """Seconds until the next step makes sense, after one with nothing to do while requests wait."""
        if self.scheduler.transfers.pending:
            return transfers.pause(self.scheduler)
        head = self.scheduler.waiting.head()
        raise EngineDead(f"no request runs, and request {head and head.id} cannot start: {head and head.why}")

    def step(self) -> bool:
        """Run one iteration of the main loop. False if there was nothing to do."""
        if self._lifecycle.changing is not None:
            self._drain()
            self._lifecycle.advance(self.runner)
            self._evictions.report()
            return True
        follows = bool(self.scheduler.transfers.in_flight) and self._take_transfers()
        began = self.clock()
        step = self.scheduler.schedule()
        self._evictions.report()
        scheduling = self.clock() - began
        if sends := bool(self.scheduler.transfers.orders):
            transfers.send_orders(self.scheduler, self.runner)
        flight = self._launch(step, scheduling, follows) if step else None
        before = len(self._flights)
        if flight:
            self._flights.append(flight)
        self._commit_flights(keep=self.scheduler.rules.ahead if flight else max(0, before - 1))
        if flight and flight.step.guided:
            self._supply(flight)
        if not self.scheduler.rules.overlap:
            self._commit_flights()
        return step is not None or before > 0 or self.scheduler.preempted or sends

    def _take_transfers(self) -> bool:
        """Handle transfers that have ended. Returns whether the next step waits for blocks on the device."""
        transfers.take_ends(self.scheduler, self.runner)
        return not self._flights and transfers.follow(self.scheduler, self.runner)

    def _drain(self) -> None:
        """Commit the steps in flight and finish all transfers."""
        self._commit_flights()
        transfers.finish(self.scheduler, self.runner)

    def _commit_flights(self, keep: int = 0) -> None:
        while len(self._flights) > keep:
            self._commit(self._flights.popleft())

    def _launch(self, step: Step, scheduling: float, follows: bool) -> Flight | None:
        began = self.clock()
        try:
            handle = self.runner.launch(step)
        except Exception as error:
            self._launch_failed(step, error)
            return None
        return Flight(step, handle, scheduling, self.clock() - began, follows)

    def _supply(self, flight: Flight) -> None:
        """Supply the masks of a step's guided rows, which depend on the step before it."""
        try:
            assert self.grammars is not None
            masks = self.grammars.masks(flight.step, self.scheduler.requests)
            self.runner.supply(flight.handle, masks)
        except Exception as error:
            self._flights.pop()
            self._launch_failed(flight.step, error)

    def _commit(self, flight: Flight) -> None:
        began, step = self.clock(), flight.step
        try:
            result = self.runner.collect(flight.handle)
        except Exception as error:
            self._step_failed(step, error)
            return
        now, prefill = self.clock(), step.prefill
        behind = self._flights[0].step if self._flights else None
        self._costs.observe(flight, prefill, result, now, behind, self.runner.weights_scheme)
        self.outputs.take(step, result, now)
        spent = (flight.scheduling, flight.launching, now - began, self.clock() - now)
        self.meters.step(now, step, prefill, spent, self.adapters.cost(step.rows))

    def record(self, path: Path) -> None:
        """Record everything an idle engine's runner receives, and its tokens, to a new file until stopped.

        Not for a server route: a client could name any file. A fresh runner can replay it.
        """
        self._lifecycle.refuse_while_changing()
        self._drain()
        if alive := self.outputs.alive:
            raise BadInput(f"a recording needs an idle engine; wait for {alive}, or end them")
        self.runner = self._recording.start(path, self.runner, self.origin, self.adapters.loads)

    def stop_recording(self) -> None:
        """Stop recording, after the step in flight. No-op if there is no recording."""
        if self._recording.on:
            self._drain()
            self.runner = self._recording.stop()

    @property
    def origin(self) -> Origin:
        """The initial state of a recording started now."""
        return Origin.of(self.scheduler, self.runner, self.limits.vocab)

    # Failures

    def _launch_failed(self, step: Step, error: Exception) -> None:
        if isinstance(error, NoMemory):
            self._shrink_steps(step, error)
        else:
            self._step_failed(step, error)

    def _step_failed(self, step: Step, error: Exception) -> None:
        """Fail the requests of the step. The engine continues if the device still works."""
        if isinstance(error, EngineDead):
            raise error
        reason = f"the step failed: {type(error).__name__}: {error} ({place(error)})"
        log.error("step %d failed", step.number, exc_info=error)
        rows = tuple(row.request for row in step.rows)
        self.bus.emit(events.StepBroke(step.number, self.clock(), reason, rows))
        recovery.resend(self.scheduler, step)
        for request in recovery.affected_requests(self.scheduler, step):
            self.outputs.end(request, Finish.FAILED, reason)
        if problem := self.runner.device_error():
            raise EngineDead(f"{problem} (after: {reason})")

    def _shrink_steps(self, step: Step, error: NoMemory) -> None:
        """Undo a step that ran out of memory and make the next ones smaller. A request alone in it fails."""
        alone = recovery.undo_step(self.scheduler, step, error)
        if alone is not None:
            self.outputs.end(alone, Finish.FAILED, f"no memory for a step of {step.tokens} tokens: {error}")

    def die(self, reason: str) -> None:
        """End every request with this reason and stop the engine permanently."""
        self.error = reason
        self._flights.clear()
        self.outputs.end_all(reason)
        self.bus.emit(events.Died(self.scheduler.step, self.clock(), reason))

    def close(self) -> None:
        """Close the tiers and the ranks. Call `die` first if requests are alive."""
        for tier in self.scheduler.transfers.tiers.values():
            tier.close()
        self.ranks.close()

    def _refuse_if_dead(self) -> None:
        if self.error:
            raise EngineDead(f"the engine has stopped: {self.error}")

    def _seed(self, params: SamplingParams) -> int:
        return self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64

    def _check(self, params: SamplingParams, prompt: Sequence[int] = (), prefix: Sequence[int] = ()) -> None:
        self.limits.check(len(self.scheduler.tables.grid), params, prompt, prefix)
        if params.guided:
            self.check_guided(params)

    def check_guided(self, params: SamplingParams) -> None:
        """Compile what constrains a reply, from any thread. It takes a while, so not on the engine's."""
        if self.grammars is None:
            raise BadParams(params.guided, "is not available: this model has no tokenizer")
        self.grammars.prepare(params)
