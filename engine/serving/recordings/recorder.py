"""Puts a recording between the engine and its runner, and takes it away again."""

from collections.abc import Iterable
from pathlib import Path
from typing import cast

from engine.api.errors import BadInput
from engine.execution.changes import AttachAdapter
from engine.execution.protocol import Runner
from engine.scheduling.scheduler import Scheduler
from engine.serving.recordings.replay import LoggedRunner, Origin, StepLog


class EngineRecording:
    """The recording of an engine, if there is one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._logged: LoggedRunner | None = None

    @property
    def on(self) -> bool:
        return self._logged is not None

    def start(self, path: Path, runner: Runner, origin: Origin, adapters: Iterable[AttachAdapter]) -> Runner:
        """Return the runner to use from now on. `adapters`: those that the runner has already loaded."""
        if self.on:
            raise BadInput("the engine is already being recorded; stop that recording first")
        log = StepLog(path, origin)
        for each in adapters:
            log.change(each)
        self._scheduler.kv.hide_names(True)
        self._logged = LoggedRunner(runner, log)
        return cast(Runner, self._logged)

    def stop(self) -> Runner:
        """Close the file and return the runner itself."""
        assert self._logged is not None
        self._logged.close()
        self._scheduler.kv.hide_names(False)
        runner, self._logged = self._logged.runner, None
        return runner
