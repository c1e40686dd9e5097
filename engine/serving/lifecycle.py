"""Changes the schemes of weights and cache at run time.

The weights' scheme changes between steps, one layer per turn, while requests are alive. The cache's scheme
changes at once, while none is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.api import events
from engine.api.config import KV_SCHEMES
from engine.api.errors import BadInput, EngineDead
from engine.api.events import log
from engine.api.snapshot import Change
from engine.execution.changes import Recache, ReplaceLayer, Resize, UseScheme
from engine.scheduling.recovery import resend
from engine.scheduling.resize import make_room, shrink
from engine.serving import transfers
from engine.serving.machine import Machine

if TYPE_CHECKING:
    from engine.execution.weights import Weights
    from engine.quant.conversion import Conversion


class Lifecycle:
    """Owns the change that is in progress, if any."""

    def __init__(self, engine: Machine, weights: Weights | None) -> None:
        self._engine, self._weights = engine, weights
        self._changing: WeightsChange | None = None
        self.change: Change | None = None  # in progress, or failed

    @property
    def changing(self) -> bool:
        return self._changing is not None

    def refuse_while_changing(self) -> None:
        if self._changing is not None:
            raise BadInput(f"the weights are changing to {self._changing.target}; wait, or cancel that")

    def set_quantization(self, scheme: str) -> None:
        """Start a change of the weights. If it is not possible, raises and changes nothing."""
        self.refuse_while_changing()
        if self._weights is None:
            problem = "the weights of this engine cannot be changed"
            raise BadInput(f"quantization {scheme!r}: {problem}", field="scheme", value=scheme)
        begun = self._changing = self._begin(self._weights, scheme)
        self.change = begun.change if begun else None  # forget an earlier change that failed

    def cancel(self) -> None:
        if self._changing is not None:
            self._changing.cancel()

    def turn(self) -> None:
        """Convert one layer of weights instead of running a step."""
        assert self._changing is not None
        changing = self._changing
        if not changing.turn():
            self._changing = None
        self.change = changing.change

    def set_kv_scheme(self, scheme: str, *, alive: int) -> None:
        """Change the scheme of the cache. No request may be alive; cached blocks are forgotten."""
        engine, scheduler = self._engine, self._engine.scheduler
        if (form := next((each for each in KV_SCHEMES if each == scheme), None)) is None:
            known = ", ".join(KV_SCHEMES)
            raise BadInput(f"unknown KV scheme {scheme!r}; available: {known}", field="scheme", value=scheme)
        self.refuse_while_changing()
        if alive:
            wait = f"wait for {alive}, or end them"
            raise BadInput(f"cannot change the cache while requests are alive: {wait}")
        if form == scheduler.kv.kv_scheme:
            return
        if problem := next((each.why_not for each in engine.runner.kv_schemes() if each.name == form), ""):
            raise BadInput(problem, field="scheme", value=scheme)
        scheduler.pool.forget_all()  # even if this fails, the blocks' contents are lost
        engine.runner.apply(Recache(form))
        fit = engine.runner.fit()
        scheduler.kv.recache(form, fit.blocks)
        engine.limits = replace(engine.limits, context=fit.context)
        engine.info = replace(engine.info, kv_dtype=engine.info.dtype if form == "none" else form)
        engine.bus.emit(events.Recached(scheduler.step, engine.clock(), form, fit.blocks))

    def _begin(self, weights: Weights, name: str) -> WeightsChange | None:
        """Start a conversion. None if the weights have that scheme already."""
        engine = self._engine
        conversion = weights.begin(
            name, lambda at, scheme: engine.runner.apply(ReplaceLayer(at, scheme.name))
        )
        if conversion.new is weights.scheme:
            return None
        blocks, size = (
            engine.runner.blocks_with(weights.freed_bytes(conversion.new)),
            engine.scheduler.pool.block_size,
        )
        if blocks is not None and blocks * size < engine.limits.context:
            raise BadInput(
                f"quantization {name!r} would leave {blocks} cache blocks, {blocks * size} tokens; "
                f"a request may have {engine.limits.context}. Restart with this scheme, or with a smaller "
                "max_context",
                field="scheme",
                value=name,
            )
        return WeightsChange(engine, conversion, blocks)


class WeightsChange:
    """Shrinks the cache if necessary, converts layer by layer, then grows the cache into the freed memory."""

    def __init__(self, engine: Machine, conversion: Conversion, blocks: int | None) -> None:
        self._engine, self._conversion = engine, conversion
        self._before = engine.scheduler.pool.size
        self._after = self._before if blocks is None else blocks
        self._began = engine.clock()
        self._started = False
        self._report()

    @property
    def target(self) -> str:
        return self._conversion.new.name

    @property
    def change(self) -> Change | None:
        """The progress of the change, or its error. None once it has succeeded."""
        conversion = self._conversion
        if conversion.over and not conversion.error:
            return None
        return Change(self.target, conversion.done, conversion.total, conversion.error, conversion.over)

    def cancel(self) -> None:
        self._conversion.cancel("it was cancelled")

    def turn(self) -> bool:
        """Advance by one layer. False when the change is over."""
        if not self._started:
            self._started = True
            if not self._conversion.error and self._after < self._before:
                self._give_room()
        elif not self._conversion.over:
            self._advance()
        self._report()
        if self._conversion.over:
            self._end()
        return not self._conversion.over

    def _advance(self) -> None:
        try:
            self._conversion.advance()
        except Exception as error:
            why = f"{type(error).__name__}: {error} (after: {self._conversion.error})"
            raise EngineDead(f"cannot reload the weights of {self._conversion.old.name}: {why}") from error

    def _give_room(self) -> None:
        engine, scheduler = self._engine, self._engine.scheduler
        make_room(scheduler, self._after)
        transfers.finish(engine)
        step = shrink(scheduler, self._after)
        try:
            engine.runner.collect(engine.runner.launch(step))
        except Exception as error:
            resend(scheduler, step)
            raise EngineDead(f"cannot move the cache's blocks: {type(error).__name__}: {error}") from error
        try:
            engine.runner.apply(Resize(self._after, tuple(scheduler.pool.held)))
        except (RuntimeError, MemoryError) as error:
            self._conversion.cancel(f"cannot shrink the cache: {error}")

    def _take_room(self, blocks: int) -> None:
        """Grow the cache. Existing blocks keep their places; without memory the size stays the same."""
        pool = self._engine.scheduler.pool
        if blocks <= pool.size:
            return
        try:
            self._engine.runner.apply(Resize(blocks, tuple(pool.held)))
        except (RuntimeError, MemoryError) as error:
            log.warning("the cache stays at %d blocks: %s", pool.size, error)
            self._engine.runner.apply(Resize(pool.size, tuple(pool.held)))
        else:
            pool.grow(blocks)

    def _end(self) -> None:
        engine, conversion = self._engine, self._conversion
        if conversion.error:
            self._take_room(self._before)
        else:
            engine.runner.apply(UseScheme(conversion.new.name))
            engine.scheduler.kv.weights_changed()
            self._take_room(self._after)
        engine.bus.emit(
            events.Quantized(
                engine.scheduler.step,
                engine.clock(),
                self.target,
                conversion.old.name,
                engine.scheduler.pool.size,
                engine.clock() - self._began,
                conversion.error,
            )
        )

    def _report(self) -> None:
        engine, conversion = self._engine, self._conversion
        done, total = conversion.done, conversion.total
        engine.bus.emit(events.Quantizing(engine.scheduler.step, engine.clock(), self.target, done, total))
