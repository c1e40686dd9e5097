"""A change of the weights' scheme while requests are alive: between two steps, a layer a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import events
from engine.errors import BadInput, EngineDead
from engine.events import log
from engine.runner.changes import ReplaceLayer, Resize, UseScheme
from engine.scheduling.recovery import abandon
from engine.scheduling.resize import shrink
from engine.snapshot import Change

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.quant.conversion import Conversion
    from engine.runner.weights import Weights


def begin(engine: Engine, weights: Weights, name: str) -> Requantization | None:
    """None: the weights are of that scheme already. Raises where it cannot be, and touches nothing then."""
    conversion = weights.begin(name, lambda at, scheme: engine.runner.apply(ReplaceLayer(at, scheme.name)))
    if conversion.new is weights.scheme:
        return None
    blocks = engine.runner.blocks_with(weights.won(conversion.new))
    size = engine.scheduler.pool.block_size
    if blocks is not None and blocks * size < engine.limits.context:
        raise BadInput(
            f"quantization {name!r} would leave {blocks} blocks of the cache, {blocks * size} tokens; "
            f"a request may have {engine.limits.context}. Start again with it, or with a smaller max_context",
            field="scheme",
            value=name,
        )
    return Requantization(engine, conversion, blocks)


class Requantization:
    """The cache gives room first, if it must; then layer after layer; then the cache takes what was won."""

    def __init__(self, engine: Engine, conversion: Conversion, blocks: int | None) -> None:
        self._engine, self._conversion = engine, conversion
        self._before = engine.scheduler.pool.size
        self._after = self._before if blocks is None else blocks
        self._began = engine.clock()
        self._started = False
        self._say()

    @property
    def wanted(self) -> str:
        return self._conversion.new.name

    @property
    def change(self) -> Change | None:
        """How far it is, or why it has failed; of one that is done there is nothing to say."""
        conversion = self._conversion
        if conversion.over and not conversion.error:
            return None
        return Change(self.wanted, conversion.done, conversion.total, conversion.error, conversion.over)

    def cancel(self) -> None:
        self._conversion.cancel("it was cancelled")

    def turn(self) -> bool:
        """False when it is over."""
        if not self._started:
            self._started = True
            if not self._conversion.error and self._after < self._before:
                self._give_room()
        elif not self._conversion.over:
            self._advance()
        self._say()
        if self._conversion.over:
            self._end()
        return not self._conversion.over

    def _advance(self) -> None:
        try:
            self._conversion.advance()
        except Exception as error:
            why = f"{type(error).__name__}: {error} (after: {self._conversion.error})"
            raise EngineDead(
                f"the weights of {self._conversion.old.name} cannot be read again: {why}"
            ) from error

    def _give_room(self) -> None:
        engine, scheduler = self._engine, self._engine.scheduler
        step = shrink(scheduler, self._after)
        try:
            engine.runner.collect(engine.runner.launch(step))
        except Exception as error:
            abandon(scheduler, step)
            raise EngineDead(
                f"the cache's blocks cannot be moved: {type(error).__name__}: {error}"
            ) from error
        try:
            engine.runner.apply(Resize(self._after, tuple(scheduler.pool.held)))
        except (RuntimeError, MemoryError) as error:
            self._conversion.cancel(f"the cache cannot be made smaller: {error}")

    def _take_room(self, blocks: int) -> None:
        """The first blocks stay where they are. Without memory for more, there are no more."""
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
            engine.scheduler.holdings.reweigh()
            self._take_room(self._after)
        engine.bus.emit(
            events.Quantized(
                engine.scheduler.step,
                engine.clock(),
                self.wanted,
                conversion.old.name,
                engine.scheduler.pool.size,
                engine.clock() - self._began,
                conversion.error,
            )
        )

    def _say(self) -> None:
        engine, conversion = self._engine, self._conversion
        done, total = conversion.done, conversion.total
        engine.bus.emit(events.Quantizing(engine.scheduler.step, engine.clock(), self.wanted, done, total))
