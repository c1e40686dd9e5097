"""The outgoing queue of the engine's process.

The engine's thread only appends. Another thread sends what has gathered, then pauses so that it takes at
most a tenth of the engine's time: one stream gets each token as it comes, and batches grow with the load.
While the parent does not read, waiting deltas are merged, so a stalled screen costs the engine neither time
nor memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from engine.api import wire
from engine.api.events import Delta, Event, log
from engine.host.frames import FrameSocket
from engine.host.packing import packed

_LEAST_PAUSE = 0.002  # seconds: a wake-up costs the engine's thread a little, too
_LONGEST_PAUSE = 0.04
_PAUSE = 9  # times the processor time of the last frame
_MERGED_AT = 64  # waiting deltas of one reply
_EVENTS = 10_000  # events kept for a stalled reader; the oldest are dropped first

Answer = Callable[[], dict[str, Any]]  # called by the sending thread


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Merge a request's deltas into one for each of its replies, in the order of their newest deltas.

    Those of the prompt come before all others, and stay as they are.
    """
    if len(deltas) == 1:
        return [*deltas]
    prompts: list[Delta] = []
    choices: dict[int, list[Delta]] = {}
    for delta in deltas:
        if delta.of_prompt:
            prompts.append(delta)
        else:
            choices[delta.choice] = [*choices.pop(delta.choice, ()), delta]
    return [*prompts, *map(_joined, choices.values())]


def _joined(deltas: Sequence[Delta]) -> Delta:
    """Merge one reply's deltas. The newest tail replaces the older ones."""
    return deltas[-1]._replace(
        tokens=tuple([token for delta in deltas for token in delta.tokens]),
        text="".join([delta.text for delta in deltas]),
        logprobs=tuple([each for delta in deltas for each in delta.logprobs]),
    )


class Outbox:
    """Accepts items from any thread. `lost` is called on the sending thread when the parent is gone."""

    def __init__(self, frames: FrameSocket, lost: Callable[[], None]) -> None:
        self._frames, self._lost = frames, lost
        self._gate = threading.Lock()
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._notes: dict[str, Any] = {}
        self._answers: list[Answer] = []
        self._events: deque[Event] = deque(maxlen=_EVENTS)
        self._deltas: dict[int, list[Delta]] = {}  # by the number of the command that started the reply
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def note(self, name: str, value: Any) -> None:
        """Report how far the start is. Of each name, only the newest value is sent."""
        with self._gate:
            self._notes[name] = value
        self._woken.set()

    def answer(self, answer: Answer) -> None:
        with self._gate:
            self._answers.append(answer)
        self._woken.set()

    def event(self, event: Event) -> None:
        with self._gate:
            self._events.append(event)
        self._woken.set()

    def delta(self, reply: int, delta: Delta) -> None:
        with self._gate:
            waiting = self._deltas.setdefault(reply, [])
            waiting.append(delta)
            if len(waiting) >= _MERGED_AT:
                waiting[:] = merged(waiting)
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """Send what is queued, then stop."""
        self._closed.set()
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._woken.wait()
                self._woken.clear()
                began = time.thread_time()
                self._send()
                spent = time.thread_time() - began
                self._closed.wait(min(max(_LEAST_PAUSE, _PAUSE * spent), _LONGEST_PAUSE))
            self._send()
        except OSError:
            self._lost()
        except Exception:
            log.exception("cannot send to the parent process")
            self._lost()

    def _send(self) -> None:
        with self._gate:
            answers, self._answers = self._answers, []
            events = list(self._events)
            self._events.clear()
            deltas, self._deltas = self._deltas, {}
            frame, self._notes = self._notes, {}
        if answers:
            frame["answers"] = [answer() for answer in answers]
        if events:
            frame["events"] = [wire.encode_event(event) for event in events]
        if deltas:
            frame["deltas"] = packed(
                (reply, delta) for reply, each in deltas.items() for delta in merged(each)
            )
        if frame:
            self._frames.send(frame)
