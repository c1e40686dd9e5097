"""The engine behind the screen: how it is loaded, changed for another model, and lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from engine.api.errors import ModelNotFound
from engine.api.snapshot import Snapshot
from minichat.clients.protocol import LinkBack, LinkLost, Progress
from minichat.models.catalogue import Model, identity
from minichat.models.fetching import fetch
from minichat.models.progress import Course
from minichat.models.welcome import found_here
from minichat.program import Program
from minichat.shell.remembered import Remembered

_SURE_WITHIN = 4.0  # seconds, as long as the question is seen


class Keeper:
    """One model runs, at most one is on its way. What happens is told in the banner."""

    def __init__(self, program: Program, model: str) -> None:
        self.program, self.model = program, model
        self.ready = asyncio.Event()  # the engine is there, or never will be
        self.trouble = ""  # why there is no engine
        self.fetching = ""  # a name of the hub
        self.course = Course()
        self.tell: Callable[[str], None] | None = None  # an open picker wants to know, too
        self._fetch = fetch
        self._tried_again = False
        self._asked_at = -_SURE_WITHIN

    @property
    def alive(self) -> bool:
        return self.ready.is_set() and not self.trouble

    @property
    def busy(self) -> str:
        """Why no other model can be taken this moment."""
        if place := self.program.backend.elsewhere:
            return f"the engine at {place} keeps its model: another one is taken where it was started"
        if not self.ready.is_set():
            return f"{short(self.model)} is being loaded: another one can be taken after that"
        return f"{short(self.fetching)} is being fetched: one at a time" if self.fetching else ""

    # Loading

    async def load(self) -> None:
        """Runs after the first frame, so that nobody waits for torch to see the screen."""
        self.program.backend.subscribe(self.program.heard)
        try:
            snapshot = await self._begin(self.model, self.program.backend.load)
        except Exception as error:  # whatever it is, the person has to read it
            self.lose(f"{self._what(self.model)}: {_reason(error)}")
        else:
            self._started(snapshot)
        self.ready.set()

    async def switch(self, model: str) -> None:
        """Another model; if it cannot be, the one before comes back."""
        before, worked = self.model, not self.trouble
        running = self.program.chats.streaming
        self.ready.clear()  # what is asked from here on waits for the new model
        self.program.pulse.rest()
        reason = f"the model was changed to {short(model)}"
        await asyncio.gather(*(each.cut_short(reason) for each in running))
        self.program.main.forget_requests()
        self.model, self.trouble = model, ""
        try:
            snapshot = await self._begin(model, partial(self.program.backend.switch, model))
        except Exception as error:
            problem, self.model = f"{self._what(model)}: {_reason(error)}", before
            if worked:
                await self._come_back(problem)
            else:
                self.lose(problem)
        else:
            self._started(snapshot)
        self.ready.set()

    async def _come_back(self, problem: str) -> None:
        try:
            snapshot = await self._begin(
                self.model, lambda told: self.program.backend.switch(self.model, told)
            )
        except Exception as error:
            self.lose(f"{problem}; and {self.model} did not come back: {_reason(error)}")
        else:
            self._started(snapshot)
            self.program.complain(f"{problem}; {short(self.model)} is back")

    async def _begin(self, model: str, load: Callable[[Progress], Awaitable[Snapshot]]) -> Snapshot:
        course, banner, keybar = Course(), self.program.main.banner, self.program.main.keybar
        place = self.program.backend.elsewhere
        banner.say(f"attaching to {place}" if place else f"loading {short(model)}")
        keybar.trouble, keybar.fault = "attaching" if place else "loading", False

        def progress(done: int, total: int) -> None:
            course.note(done, total)
            banner.say(f"loading {short(model)}  {course.words()}", course.share)

        return await load(progress)

    def _started(self, snapshot: Snapshot) -> None:
        program, backend, terminal = self.program, self.program.backend, self.program.start.terminal
        self._tried_again = False
        if snapshot.state == "dead":  # one elsewhere, which nobody has ended yet
            self.lose(f"the engine has stopped: {snapshot.error}")
            return
        program.main.banner.say("")
        program.main.show_snapshot(snapshot)
        template = "" if backend.has_template else "completes text: no chat template"
        where = f"attached to {place}" if (place := backend.elsewhere) else ""
        program.main.keybar.trouble = ""
        program.main.keybar.about = "  ".join(filter(None, (where, "ssh" if terminal.ssh else "", template)))
        if place:
            self.model = snapshot.model
            program.ask(program.chats.resume())
        else:
            file = program.paths.remembered
            Remembered.read(file).used(identity(self.model)).write(file)
        if program.chats.first_ever:
            program.main.found = found_here(snapshot, terminal, program.app.console.color_system)
            program.main.label()
            program.chats.first_ever = False

    def again(self) -> bool:
        """Starts a lost engine once more, in place. False where that did not help, or none is lost."""
        if self.program.backend.elsewhere and not self.ready.is_set():
            self.program.app.notify("it is tried again all the time")
            return True
        if not self.trouble or (self._tried_again and not self.program.backend.elsewhere):
            return self._asks_first()
        self._tried_again = True
        self.program.app.run_worker(self.switch(self.model), group="model", exclusive=True)
        return True

    def _asks_first(self) -> bool:
        """Whether replies run that the end of the program ends too, which is told; once more means it."""
        running, now = len(self.program.chats.streaming), time.monotonic()
        if not running or self.program.backend.elsewhere or now - self._asked_at < _SURE_WITHIN:
            return False
        self._asked_at = now
        key, what = self.program.keys.name("program.restart"), "a reply runs"
        what = what if running == 1 else f"{running} replies run"
        ways = f"{key} once more ends that, and starts the program again"
        self.program.app.notify(f"{what}: {ways}", severity="warning")
        return True

    def lose(self, reason: str) -> None:
        """There is no engine: what is left to do is said."""
        self.trouble = reason
        again, other = map(self.program.keys.name, ("program.restart", "model.pick"))
        what = "the program again, chats as they are" if self._tried_again else "it again"
        ways = f"{again} starts {what}; {other} takes another model"
        if self.program.backend.elsewhere:
            ways = f"{again} tries it again"
        # The reason may be too long for the line.
        self.program.main.banner.say(f"{ways}  |  {reason}", fault=True)
        self.program.main.keybar.trouble, self.program.main.keybar.fault = "no engine", True

    # The line to an engine elsewhere

    def cut(self, event: LinkLost) -> None:
        """The screen stays as it is; what is asked from here on waits for the line."""
        if event.ended:
            self.lose(event.why)
            if (last := self.program.main.engine.latest) is not None:
                self.program.main.show_snapshot(last.ended(event.why))
            self.ready.set()  # whoever waits learns that there is none
            return
        self.ready.clear()
        self.program.pulse.rest()
        place, main = self.program.backend.elsewhere, self.program.main
        why = f"no link to {place} ({event.why}): it is tried again; what you send waits"
        main.banner.say(why, fault=True)
        main.keybar.trouble, main.keybar.fault = "no link", True

    def mended(self, event: LinkBack) -> None:
        self.trouble = ""
        if event.anew:
            self.program.main.forget_requests()
        self.program.ask(self._go_on())

    async def _go_on(self) -> None:
        snapshot = await self.program.backend.snapshot()
        self.program.main.keybar.fault = False
        self._started(snapshot)
        self.ready.set()
        self.program.pulse.wake()

    # Choosing

    def choose(self, model: Model) -> None:
        """What is here is loaded; what is not is fetched first, while the present one goes on."""
        work = self.switch(model.name) if model.support else self._fetch_then_switch(model.name)
        self.program.app.run_worker(work, group="model", exclusive=True)

    def call_off(self) -> None:
        """The download ends; the next one goes on where it was."""
        self.program.app.workers.cancel_group(self.program.app, "model")

    async def _fetch_then_switch(self, name: str) -> None:
        self.fetching, self.course = name, Course()
        self._say_fetching()
        try:
            await self._fetch(name, self._fetched_so_far)
        except asyncio.CancelledError:
            self._end_fetching(f"{short(name)} was called off; what has come is kept")
            raise
        except ModelNotFound as error:
            self._end_fetching(str(error), fault=True)
            return
        self._end_fetching("")
        await self.switch(name)

    def _fetched_so_far(self, done: int, total: int) -> None:
        self.course.note(done, total)
        self._say_fetching()

    def _say_fetching(self) -> None:
        words = f"fetching {short(self.fetching)}  {self.course.words() if self.course.total else ''}"
        self.program.main.banner.say(words.rstrip(), self.course.share)
        if self.tell is not None:
            self.tell(words)

    def _end_fetching(self, said: str, *, fault: bool = False) -> None:
        self.fetching = ""
        if self.trouble:
            self.lose(self.trouble)
        else:
            self.program.main.banner.say("")
        if self.tell is not None:
            self.tell(said)
        elif fault:
            self.program.complain(said)

    def _what(self, model: str) -> str:
        """What could not be."""
        place = self.program.backend.elsewhere
        return f"cannot attach to {place}" if place else f"{model} could not be loaded"


def short(model: str) -> str:
    """The last part of a name or a path."""
    return model.rstrip("/").rpartition("/")[2] or model


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
