"""Links text and KV blocks: what is selected on one side is highlighted on the other."""

import asyncio
from collections.abc import Sequence

from engine.api.snapshot import Snapshot
from minichat.features.feature import Context, Feature
from minichat.features.monitor import MonitorSide
from minichat.session.shared_blocks import Spans, blocks_of, texts_of
from minichat.session.traces import Known

_UNREAD = "blocks unknown: no known request has this text"  # perhaps of another engine or screen
_GONE = "no longer in the cache"


class Links:
    """Tracks the map's cursor and the selections in transcripts, and updates both while either is set."""

    def __init__(self, context: Context) -> None:
        self._context, self._kvmap = context, context.part(MonitorSide).kvmap
        self._blocks: tuple[int, ...] = ()
        self._spans: Spans = {}
        self._fresh = False  # the cursor has moved, so scroll its text into view
        self._glows = False
        self._again = False
        self._task: asyncio.Task[None] | None = None
        context.signals.pointed.connect(self.point)
        context.signals.selected.connect(self.select)
        context.signals.snapshot.connect(self.see_snapshot)

    def point(self, blocks: Sequence[int]) -> None:
        """Set the blocks under the map's cursor; empty if it has left."""
        self._fresh = tuple(blocks) != self._blocks
        self._blocks = tuple(blocks)
        self._wake()

    def select(self) -> None:
        """The selection has changed."""
        spans: Spans = {}
        for pane in self._context.workspace.panes:
            spans |= pane.transcript.selected_spans()
        if spans != self._spans:
            self._spans = spans
            self._wake()

    def see_snapshot(self, snapshot: Snapshot) -> None:
        if self._blocks or self._spans:
            self._wake()

    def _wake(self) -> None:
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="links")

    async def _look(self) -> None:
        """Update both sides, and repeat if something changed while the engine was answering."""
        while self._again:
            self._again = False
            if self._blocks:  # a snapshot may have others at the same place
                self._blocks = self._kvmap.pointed()
            if self._context.engine.latest is not None:
                known = await self._learn() if self._blocks or self._spans else {}
                self._light(self._context.engine.latest, known)
                self._glow(self._context.engine.latest, known)

    async def _learn(self) -> dict[int, Known]:
        """By request: the tokens that this screen's requests have computed."""
        backend = self._context.program.backend
        traces = [trace for each in self._context.chats for trace in each.traces.values()]
        return {trace.request: await trace.learn(backend) for trace in traces}

    def _light(self, shot: Snapshot, known: dict[int, Known]) -> None:
        blocks, fresh = self._blocks, self._fresh
        self._fresh = False
        spans = texts_of(blocks, shot.blocks, shot.block_size, known)
        for pane in self._context.workspace.panes:
            pane.transcript.highlight(spans, show=fresh)
        self._kvmap.tell({block: self._text(block, shot, known) for block in blocks})

    def _text(self, block: int, shot: Snapshot, known: dict[int, Known]) -> str:
        """The text of a block, including template tokens; empty if unknown."""
        view = shot.blocks
        owner = known.get(int(view.owner[block]))
        if owner is None:
            return ""
        low = int(view.place[block]) * shot.block_size
        tokens = owner.ids[low : low + int(view.filled[block])].tolist()
        return "".join(self._context.program.backend.words(tokens))

    def _glow(self, shot: Snapshot, known: dict[int, Known]) -> None:
        kvmap = self._kvmap
        if not self._spans:
            if self._glows:  # otherwise another feature highlights blocks
                kvmap.say("")
                kvmap.glow(())
            self._glows = False
            return
        self._glows = True
        found = blocks_of(self._spans, shot.blocks, shot.block_size, known)
        kvmap.say(_UNREAD if found is None else "" if found else _GONE)
        kvmap.glow(found or ())


LINKS = Feature(name="links", title="Links between text and KV blocks", part=Links)
