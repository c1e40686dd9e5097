"""Collects the changes to tables, sampling and tokens that the runner needs with the next step."""

from engine.api.request import Request
from engine.kv.tables import BlockTables
from engine.scheduling.step import SlotSampling, SlotTokens, Step, StepBuilder


class Changes:
    """The changes since the last step. A failed step has delivered its changes too."""

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._resampled: dict[int, Request] = {}
        self._history: dict[int, SlotTokens] = {}  # by request

    def resample(self, request: Request) -> None:
        """Send the request's sampling parameters with its next row that samples."""
        self._resampled[request.id] = request

    def drafts(self, request: Request, *, on_device: bool) -> None:
        """Note that the request's row has drafts.

        A draft model needs the tokens before them. Penalties count drafts as text, so the slot's real tokens
        are sent with this step and with the next.
        """
        if on_device:
            known = request.mirrored
            self._history[request.id] = SlotTokens(request.slot, known, tuple(request.tokens[known:]))
            request.mirrored = len(request.tokens)
        if request.params.penalized:
            self.resample(request)

    def build(self, builder: StepBuilder, number: int) -> Step:
        """Build the step with all changes to its rows. Sampling changes wait for a row that samples."""
        waiting, self._resampled = self._resampled, {}
        sampling = []
        for id, request in waiting.items():
            if request.slot < 0:
                continue  # it is resampled when it runs again
            if samples := builder.samples(id):
                sampling.append(_sampling(request))
            if not samples or (id in builder.drafts and request.params.penalized):
                self._resampled[id] = request
        history: tuple[SlotTokens, ...] = ()
        if self._history:
            history = tuple(each for id, each in self._history.items() if id in builder.drafts)
            self._history = {}
        return builder.build(number, self._tables.take_changes(), tuple(sampling), history)


def _sampling(request: Request) -> SlotSampling:
    seen = tuple(request.tokens) if request.params.penalized else ()
    return SlotSampling(
        request.slot, request.prompt_len, request.params, request.seed, seen, request.pending > 0
    )
