"""The loop of a rank of a pipeline: it reports each step unasked, so that no stage waits for rank 0."""

from typing import Any

from engine.api.events import log
from engine.distributed.loop import RankLoop
from engine.distributed.messages import digest, draft_digest, error_to_wire
from engine.distributed.stages import PipelineLink
from engine.scheduling.step import Masks, Step


class StageLoop(RankLoop):
    link: PipelineLink  # set by the caller

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.link.close()

    def _launch(self, step: Step) -> None:
        try:
            with self.link.step(len(step.ids)):
                handle = self._runner.launch(step)
            if step.guided and self.link.last:
                self._launched[step.number] = step, handle
                return
            self._report_done(step.number, handle)
        except Exception as error:
            self._fail_step(step.number, error)

    def _supply(self, number: int, masks: Masks) -> None:
        if number not in self._launched:
            return  # it has failed here, and was reported
        self._check_masks(number, masks)
        _, handle = self._launched.pop(number)
        try:
            self._runner.supply(handle, masks)
            self._report_done(number, handle)
        except Exception as error:
            self._fail_step(number, error)

    def _report_done(self, number: int, handle: Any) -> None:
        """With what must be equal on all ranks: the tokens of those that sample, else the drafts."""
        last = self.link.last
        found = digest(self._runner.collect(handle)) if last else draft_digest(handle.drafts)
        self._collective.check()  # of a stage that does not sample: earlier steps
        self._report(number, None, found)

    def _fail_step(self, number: int, error: Exception) -> None:
        """Report it. Other stages go on with a blank stream; ranks of this stage would wait for this one."""
        log.error("step %d failed on this rank", number, exc_info=error)
        if self._collective.ranks > 1:
            self._collective.interrupt()
        self._report(number, error, 0)

    def _report(self, number: int, error: Exception | None, digest: int) -> None:
        wire = None if error is None else error_to_wire(self._rank, error)
        seconds, sent = self._collective.exchanged
        spent = {"busy": self.link.busy, "exchanged": [seconds, sent + self.link.sent]}
        self._link.send({"step": number, "error": wire, "digest": digest} | spent)
