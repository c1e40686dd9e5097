"""Loading the engine behind the screen, changing its model, and handling its loss."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from engine.api.errors import (
    BadCheckpoint,
    BadInput,
    BadWire,
    EngineError,
    HubUnreachable,
    ModelNotFound,
    NoRoom,
    UnsupportedModel,
)
from engine.api.snapshot import Snapshot
from engine.kernels.cpu.compiled import build
from minichat.clients.protocol import LinkBack, LinkLost, Progress
from minichat.models.catalog import Model, identity
from minichat.models.fetching import fetch
from minichat.models.progress import ProgressMeter
from minichat.models.welcome import found_here
from minichat.program import Program
from minichat.shell.again import code
from minichat.shell.background import begin
from minichat.shell.remembered import Remembered
from minichat.start import Blame

_LOOK = 0.5  # seconds between looks at what a load waits for
_OF_THE_MODEL = (ModelNotFound, UnsupportedModel, BadCheckpoint)  # a restart finds the same model


class EngineLifecycle:
    """Runs one model and downloads at most one. Reports in the banner."""

    def __init__(self, program: Program, model: str) -> None:
        self.program, self.model = program, model
        self.ready = asyncio.Event()  # set once the engine is ready or has failed
        self.trouble = ""  # why there is no engine
        self.fetching = ""  # the hub name of the running download
        self.meter = ProgressMeter()
        self.tell: Callable[[str], None] | None = None  # set by an open model dialog
        self.fetch = fetch
        self._tried_again = self._restarting = self._stopping = False
        self._failed: Exception | None = None  # why it could not be loaded
        self._replacement = ""  # the command that starts another engine elsewhere
        self._code = dict[str, float]()  # when the files were saved that ran as the engine was lost
        self._answers = False  # an engine elsewhere still runs, but cannot be used
        self._refused = ""  # the last notice of a refusal

    @property
    def refusal(self) -> str:
        """Why every request would fail now, and what to do. Empty if requests run, or wait for the engine."""
        if self._restarting:
            return "The engine is being restarted. Wait until it is ready"
        if self._stopping:
            return "The engine is being stopped. Send messages when it runs again"
        if not self.trouble:
            return ""
        return f"There is no engine. {self._ways[0]}"

    def refuses(self) -> bool:
        """Whether every request would fail now. If so, say why."""
        if refusal := self.refusal:
            self._refused = refusal
            self.program.report(refusal)
        return bool(refusal)

    def _end_refusal(self) -> None:
        """Remove a notice that is no longer true."""
        self.program.end_notice(self._refused)

    @property
    def _ways(self) -> list[str]:
        """How to get an engine again."""
        names = ("program.restart", "model.pick", "program.quit")
        again, other, leave = map(self.program.keys.name, names)
        start, backend = self.program.start, self.program.backend
        failed = self._failed
        blame = start.blame(failed) if start.blame and isinstance(failed, EngineError) else Blame()
        correct = f"Correct {blame.place} and press {again}" if blame.place else ""
        if blame.option:
            correct = f"Quit ({leave}) and start without {blame.option}"
        if self._replacement:
            return [f"Run {self._replacement} in another terminal"]
        if backend.elsewhere:
            does = "restarts the engine" if backend.starts and not self._answers else "reconnects"
            return [correct or f"{again} {does}"]
        # First in place. If that did not help, the process may be at fault.
        what = "the program" if self._tried_again else "the engine"
        restart = [f"{again} restarts {what}"]
        if correct:
            restart = [correct]
        elif isinstance(failed, BadInput) and not isinstance(failed, NoRoom):
            # An option or a setting, which a restart does not change. Of memory, there may be more then.
            file = start.loaded.document
            where = f"the options or {file.file.name}" if file.tables.get("engine") else "the options"
            restart = [f"Quit ({leave}) and change {where}"]
        elif isinstance(failed, _OF_THE_MODEL) and not isinstance(failed, HubUnreachable):
            restart = []
        if blame.of_any_model(failed):
            return restart
        return [*restart, f"{other} chooses another model"]

    @property
    def alive(self) -> bool:
        return self.ready.is_set() and not self.trouble

    @property
    def busy(self) -> str:
        """Why no other model can be chosen now."""
        if not self.ready.is_set():
            return f"{short(self.model)} is loading; wait until it is ready"
        return f"{short(self.fetching)} is downloading, and will then be loaded" if self.fetching else ""

    # Loading

    async def load(self) -> None:
        """Load the engine after the first frame, because importing torch is slow."""
        self.program.backend.subscribe(self.program.receive_events)
        try:
            snapshot = await self._begin(self.model, self.program.backend.load)
        except Exception as error:  # show any failure to the user
            self.report_loss(f"{self._what(self.model)}: {_reason(error)}", error)
        else:
            self._started(snapshot)
        self._set_ready()

    async def switch(self, model: str) -> None:
        """Load another model. If that fails, reload the previous one."""
        before, worked = self.model, not self.trouble
        running = self.program.chats.streaming
        self.ready.clear()  # later requests wait for the new model
        self.program.poller.stop()
        reason = f"{short(model)} was chosen instead of {short(before)}"
        await asyncio.gather(*(each.cut_short(reason) for each in running))
        self.program.main.forget_requests()
        self.model, self.trouble = model, ""
        self._end_refusal()
        try:
            snapshot = await self._begin(model, partial(self.program.backend.switch, model))
        except Exception as error:
            problem, self.model = f"{self._what(model)}: {_reason(error)}", before
            if worked:
                await self._reload_previous(problem)
            else:
                self.report_loss(problem, error)
        else:
            self._started(snapshot)
        self._set_ready()

    async def _reload_previous(self, problem: str) -> None:
        try:
            snapshot = await self._begin(
                self.model, lambda progress: self.program.backend.switch(self.model, progress)
            )
        except Exception as error:
            self.report_loss(f"{problem}; cannot reload {self.model}: {_reason(error)}", error)
        else:
            self._started(snapshot)
            self.program.report(f"{problem}; {short(self.model)} was reloaded")

    async def _begin(self, model: str, load: Callable[[Progress], Awaitable[Snapshot]]) -> Snapshot:
        meter, banner, keybar = ProgressMeter(), self.program.main.banner, self.program.main.keybar
        place = self.program.backend.elsewhere
        what = short(model) or place  # an attached screen learns the model later
        banner.say(f"attaching to {place}" if place else f"loading {what}")
        keybar.trouble, keybar.fault = "attaching" if place else "loading", False

        def progress(done: int, total: int) -> None:
            meter.update(done, total)
            banner.say(f"loading {what}  {meter.text()}", meter.fraction)

        async def tell_what_it_waits_for() -> None:
            seen = 0
            while True:
                if seen == meter.done and build.compiling():
                    banner.say(f"loading {what}: compiling kernels for this CPU, kept for later starts")
                elif seen == meter.done == meter.total > 0:
                    banner.say(f"loading {what}: the weights are there, preparing kernels and the cache")
                elif seen == meter.done and meter.rate:
                    progress(meter.done, meter.total)  # no bytes came: the rate falls
                seen = meter.done
                await asyncio.sleep(_LOOK)

        telling = asyncio.create_task(tell_what_it_waits_for())
        try:
            return await load(progress)
        finally:
            telling.cancel()

    def _started(self, snapshot: Snapshot) -> None:
        program, backend, terminal = self.program, self.program.backend, self.program.start.terminal
        self._tried_again = self._restarting = self._stopping = False
        if snapshot.state == "dead":  # a remote engine that died but was not stopped
            self.stopped(snapshot.error)
            return
        self._end_refusal()
        program.main.banner.say("")
        program.main.show_snapshot(snapshot)
        template = "" if backend.has_template else "completes text: no chat template"
        where = f"attached to {place}" if (place := backend.elsewhere) else ""
        program.main.keybar.trouble = ""
        program.main.keybar.about = "  ".join(filter(None, (where, "ssh" if terminal.ssh else "", template)))
        if place:
            self.model = snapshot.model
        else:
            file = program.paths.remembered
            Remembered.read(file).used(identity(self.model)).write(file)
            program.ask(self._forget_deleted())
        program.ask(program.chats.resume())
        if program.chats.first_ever or program.main.found:
            colors = None if program.app.no_color else program.app.console.color_system
            program.main.found = found_here(snapshot, terminal, colors)
            program.chats.first_ever = False
        program.main.label()
        if snapshot.state == "restarting":
            self.restarting(snapshot.error)

    async def _forget_deleted(self) -> None:
        """Those whose blocks an earlier screen could not delete."""
        with self.program.reporting_errors():
            await self.program.chats.forget()

    def _set_ready(self) -> None:
        self.ready.set()
        self.program.main.label()  # from now on, what has failed may be retried

    def again(self) -> bool:
        """Restart a lost engine in place. Return False if the program must be restarted.

        That is the case if it did not help, no engine is lost, or its settings or its code were edited since.
        """
        if self.program.backend.elsewhere and not self.ready.is_set():
            first = self.program.main.engine.latest is None
            self.program.app.notify("Already attaching" if first else "Already reconnecting")
            return True
        if self.trouble and (self.program.start.edited() or not self._code.items() <= code().items()):
            return False
        if not self.trouble or (self._tried_again and not self.program.backend.elsewhere):
            return False
        self._tried_again = True
        begin(self.program.app, partial(self.switch, self.model), group="model", exclusive=True)
        return True

    @property
    def converting(self) -> str:
        """The conversion that a restart would end, in words."""
        latest = self.program.main.engine.latest
        if latest is None or latest.change is None or latest.change.over:
            return ""
        back = f"back to {latest.quantization}" if latest.change.error else f"to {latest.change.scheme}"
        return f"The weights are changing {back}"

    def stopped(self, error: str) -> None:
        """The engine has ended by itself. If it is remote, its server still answers."""
        self.report_loss(f"the engine has stopped: {error}", replacement=self.program.backend.replacement)

    def report_loss(
        self, reason: str, error: Exception | None = None, *, answers: bool = False, replacement: str = ""
    ) -> None:
        """Report the loss of the engine and the ways to recover. `error`: why it could not be loaded.

        `replacement`: the command that starts another one, if this screen cannot.
        """
        self.trouble, self._replacement, self._code = reason, replacement, code()
        self._failed, self._answers = error, answers or isinstance(error, BadWire)
        self._restarting = self._stopping = False
        self._say_loss()
        self.program.main.label()  # nothing can be retried

    def _say_loss(self) -> None:
        # The reason comes last, because it may be cut off.
        self.program.main.banner.say(f"{'; '.join(self._ways)}  |  {self.trouble}", fault=True)
        self.program.main.keybar.trouble, self.program.main.keybar.fault = "no engine", True

    def restarting(self, reason: str) -> None:
        """A remote engine has ended, and its server starts it again."""
        self.program.main.banner.say(f"the engine is being restarted  |  {reason}", fault=True)
        self.program.main.keybar.trouble, self.program.main.keybar.fault = "restarting", True
        self._restarting = True
        self.program.main.label()

    def restarted(self) -> None:
        self.program.main.banner.say("")
        self.program.main.keybar.trouble, self.program.main.keybar.fault = "", False
        self._restarting = False
        self._end_refusal()
        self.program.main.label()

    # The link to a remote engine

    def cut(self, event: LinkLost) -> None:
        """The link is down. Keep the screen; requests wait for the link."""
        if event.ended:
            self.report_loss(event.why, answers=event.answers)
            if (last := self.program.main.engine.latest) is not None:
                self.program.main.show_snapshot(last.ended(event.why))
            self.ready.set()  # release the waiting requests; they fail
            return
        self.ready.clear()
        self.program.poller.stop()
        place, main = self.program.backend.elsewhere, self.program.main
        why = f"no link to {place} ({event.why}); reconnecting. Idle chats queue a message"
        if event.stopped:
            why = f"{place} is being stopped; running replies may end"
        main.banner.say(why, fault=True)
        main.keybar.trouble, main.keybar.fault = "stopping" if event.stopped else "no link", True
        self._stopping = event.stopped
        main.label()

    def reconnected(self, event: LinkBack) -> None:
        self.trouble = ""
        if event.restarted:
            self.program.main.forget_requests()
        self.program.ask(self._go_on())

    async def _go_on(self) -> None:
        snapshot = await self.program.backend.snapshot()
        self.program.main.keybar.fault = False
        self._started(snapshot)
        self._set_ready()
        self.program.poller.wake()

    # Choosing

    def choose(self, model: Model) -> None:
        """Load a local model, or download one first while the current model keeps running."""
        work = self.switch if model.support else self._fetch_then_switch
        begin(self.program.app, partial(work, model.name), group="model", exclusive=True)

    def cancel_fetching(self) -> None:
        """Cancel the download. The next one resumes it."""
        self.program.app.workers.cancel_group(self.program.app, "model")

    async def _fetch_then_switch(self, name: str) -> None:
        self.fetching, self.meter = name, ProgressMeter()
        self._say_fetching()
        telling = asyncio.create_task(self._tell_that_it_stalls())
        try:
            await self.fetch(name, self._fetched_so_far)
        except asyncio.CancelledError:
            self._end_fetching(f"Download of {short(name)} canceled; the partial download is kept")
            raise
        except EngineError as error:
            self._end_fetching(str(error), fault=True)
            return
        finally:
            telling.cancel()
        self._end_fetching("")
        await self.switch(name)

    async def _tell_that_it_stalls(self) -> None:
        """Let the rate fall while no bytes come."""
        while True:
            seen = self.meter.done
            await asyncio.sleep(_LOOK)
            if seen == self.meter.done and self.meter.rate:
                self._fetched_so_far(self.meter.done, self.meter.total)

    def _fetched_so_far(self, done: int, total: int) -> None:
        self.meter.update(done, total)
        self._say_fetching()

    def _say_fetching(self) -> None:
        words = f"downloading {short(self.fetching)}  {self.meter.text() if self.meter.total else ''}"
        self.program.main.banner.say(words.rstrip(), self.meter.fraction)
        if self.tell is not None:
            self.tell(words)

    def _end_fetching(self, message: str, *, fault: bool = False) -> None:
        self.fetching = ""
        if self.trouble:
            self._say_loss()
        else:
            self.program.main.banner.say("")
        if self.tell is not None:
            self.tell(message)
        elif fault:
            self.program.report(message)

    def _what(self, model: str) -> str:
        """The start of an error message for a failed load."""
        place = self.program.backend.elsewhere
        return f"cannot attach to {place}" if place else f"cannot load {model}"


def short(model: str) -> str:
    """The last component of a name or path."""
    return model.rstrip("/").rpartition("/")[2] or model


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
