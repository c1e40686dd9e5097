"""Changes the schemes of weights and cache at run time.

The weights' scheme changes between steps, one part at a time, while requests are alive. The cache's scheme
changes at once, while none is. Both work on the scheduler and on the runner alone. The runner is an argument
of each call, because it is another one while the engine is recorded.
"""

from engine.api import events
from engine.api.cache_spec import KV_SCHEMES
from engine.api.errors import BadInput, EngineDead, EngineError, WeightsChanging, refuse_beside
from engine.api.events import log
from engine.api.snapshot import Change
from engine.execution.changes import Recache, ReplaceLayer, Resize, UseScheme
from engine.execution.protocol import Fit, Runner, WeightsPlan
from engine.scheduling.recovery import resend
from engine.scheduling.resize import make_room, shrink
from engine.scheduling.scheduler import Scheduler
from engine.serving import transfers


class Lifecycle:
    """Owns the change of the weights that is in progress, if any."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.changing: Requantization | None = None
        self.change: Change | None = None  # in progress, or failed

    def refuse_while_changing(self) -> None:
        if self.changing is None:
            return
        plan = self.changing.plan
        if self.changing.change is not None and self.changing.change.error:
            raise BadInput(f"the weights are changing back to {plan.old}; wait")
        raise WeightsChanging(f"the weights are changing to {plan.new}; wait, or cancel that")

    def set_quantization(self, scheme: str, runner: Runner, *, context: int) -> None:
        """Start a change of the weights. If it is not possible, raises and changes nothing.

        `context`: the tokens of a request that the cache must still hold.
        """
        self.refuse_while_changing()
        if (plan := runner.plan_weights(scheme)) is None:
            problem = "the weights of this engine cannot be changed"
            raise BadInput(f"quantization {scheme!r}: {problem}", field="scheme", value=scheme)
        tokens_in = self._scheduler.kv.groups.tokens_in
        if plan.blocks is not None and (tokens := tokens_in(plan.blocks)) < context:
            raise BadInput(
                f"quantization {scheme!r} would leave {plan.blocks} cache blocks, "
                f"{tokens} tokens; a request may have {context}. Restart with this scheme, "
                "or with a smaller max_context",
                field="scheme",
                value=scheme,
            )
        self.changing = Requantization(self._scheduler, plan) if plan.parts else None
        self.change = self.changing.change if self.changing else None  # forget an earlier one that failed

    def cancel(self) -> None:
        if self.changing is not None:
            self.changing.cancel("it was canceled")

    def advance(self, runner: Runner) -> None:
        """Replace one part of the weights instead of running a step."""
        assert self.changing is not None
        changing = self.changing
        changing.advance(runner)
        if changing.over:
            self.changing = None
        self.change = changing.change

    def set_kv_scheme(self, scheme: str, runner: Runner, *, alive: int) -> Fit | None:
        """Change the scheme of the cache. No request may be alive; cached blocks are forgotten.

        Returns what fits in it now; None if it has that scheme already.
        """
        scheduler = self._scheduler
        if (form := next((each for each in KV_SCHEMES if each == scheme), None)) is None:
            known = ", ".join(KV_SCHEMES)
            raise BadInput(f"unknown KV scheme {scheme!r}; available: {known}", field="scheme", value=scheme)
        self.refuse_while_changing()
        refuse_beside(alive)
        if form == scheduler.kv.kv_scheme:
            return None
        if problem := next((each.why_not for each in runner.kv_schemes() if each.name == form), ""):
            raise BadInput(problem, field="scheme", value=scheme)
        scheduler.pool.forget_all()  # even if this fails, the blocks' contents are lost
        scheduler.transfers.reset()
        runner.apply(Recache(form))
        fit = runner.fit()
        scheduler.kv.recache(form, fit.blocks)
        return fit


class Requantization:
    """One change of the weights' scheme, which `advance` takes a step further.

    Shrinks the cache if necessary, replaces part after part, then grows the cache into the freed memory.
    After an error or a cancel it replaces the parts back. Until it is over, the model is a mixture that must
    not be run.
    """

    def __init__(self, scheduler: Scheduler, plan: WeightsPlan) -> None:
        self._scheduler, self.plan = scheduler, plan
        self._before = scheduler.pool.size
        self._after = self._before if plan.blocks is None else plan.blocks
        self._began = scheduler.clock()
        self._started = False
        self._done = 0  # parts in the new scheme
        self._error = ""  # why the old weights come back, or have come back
        self._report()

    @property
    def over(self) -> bool:
        return self._done == (0 if self._error else self.plan.parts)

    @property
    def change(self) -> Change | None:
        """The progress of the change, or its error. None once it has succeeded."""
        if self.over and not self._error:
            return None
        return Change(self.plan.new, self._done, self.plan.parts, self._error, self.over)

    def cancel(self, reason: str) -> None:
        self._error = self._error or reason

    def advance(self, runner: Runner) -> None:
        """Make room in the cache, or replace one part, forward or back."""
        if not self._started:
            self._started = True
            if not self._error and self._after < self._before:
                self._give_room(runner)
        elif not self.over:
            if self._error:
                self._replace_back(runner)
            else:
                self._replace(runner)
        self._report()
        if self.over:
            self._end(runner)

    def _replace(self, runner: Runner) -> None:
        plan = self.plan
        try:
            runner.apply(ReplaceLayer(self._done, plan.new))
        except Exception as error:  # any error: a broken file, out of memory, a third-party library
            at = (plan.new, self._done, plan.parts)
            log.warning("quantization %s failed at layer %d of %d", *at, exc_info=error)
            self._error = _summary(error)
        self._done += 1

    def _replace_back(self, runner: Runner) -> None:
        """Replace the last part back. If that fails, the model is lost."""
        try:
            runner.apply(ReplaceLayer(self._done - 1, self.plan.old))
        except Exception as error:
            why = f"{type(error).__name__}: {error} (after: {self._error})"
            raise EngineDead(f"cannot reload the weights of {self.plan.old}: {why}") from error
        self._done -= 1

    def _give_room(self, runner: Runner) -> None:
        scheduler = self._scheduler
        make_room(scheduler, self._after)
        transfers.finish(scheduler, runner)
        step = shrink(scheduler, self._after)
        try:
            runner.collect(runner.launch(step))
        except Exception as error:
            resend(scheduler, step)
            raise EngineDead(f"cannot move the cache's blocks: {type(error).__name__}: {error}") from error
        try:
            runner.apply(Resize(self._after, tuple(scheduler.pool.held)))
        except (RuntimeError, MemoryError) as error:
            self.cancel(f"cannot shrink the cache: {error}")

    def _take_room(self, runner: Runner, blocks: int) -> None:
        """Grow the cache. Existing blocks keep their places; without memory the size stays the same."""
        pool = self._scheduler.pool
        if blocks <= pool.size:
            return
        try:
            runner.apply(Resize(blocks, tuple(pool.held)))
        except (RuntimeError, MemoryError) as error:
            log.warning("the cache stays at %d blocks: %s", pool.size, error)
            runner.apply(Resize(pool.size, tuple(pool.held)))
        else:
            pool.grow(blocks)

    def _end(self, runner: Runner) -> None:
        scheduler, plan = self._scheduler, self.plan
        if self._error:
            self._take_room(runner, self._before)
        else:
            runner.apply(UseScheme(plan.new))
            scheduler.kv.weights_changed(plan.new)
            self._take_room(runner, self._after)
        now = scheduler.clock()
        scheduler.emit(
            events.Quantized(
                scheduler.step, now, plan.new, plan.old, scheduler.pool.size, now - self._began, self._error
            )
        )

    def _report(self) -> None:
        scheduler, plan = self._scheduler, self.plan
        scheduler.emit(events.Quantizing(scheduler.step, scheduler.clock(), plan.new, self._done, plan.parts))


def _summary(error: Exception) -> str:
    """Return one sentence. The full text is in the log; on a GPU it is a page about memory."""
    if isinstance(error, EngineError):
        return str(error)
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {first.rstrip('.')}"
