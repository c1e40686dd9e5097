"""What a start did on each thread."""

import threading
import time

import pytest

from engine import timeline
from engine.timeline import Span, timed


@pytest.fixture(autouse=True)
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    found: list[Span] = []
    monkeypatch.setattr(timeline, "spans", found)
    monkeypatch.setattr(timeline, "others", [])
    return found


def test_a_span_has_its_thread_and_its_processor_time(spans: list[Span]) -> None:
    def waits() -> None:
        with timed("waiting"):
            time.sleep(0.02)

    thread = threading.Thread(target=waits, name="other", daemon=True)
    thread.start()
    thread.join()
    (found,) = spans
    assert (found.thread, found.what) == ("other", "waiting")
    assert found.ended - found.began >= 0.02
    assert found.busy < 0.02


def test_what_fails_has_taken_time_too(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match="no"), timed("failing"):
        raise ValueError("no")
    assert [each.what for each in spans] == ["failing"]


def test_equal_spans_of_a_thread_are_joined() -> None:
    found = [
        Span("a", "pin", 3.0, 4.0, 0.5),
        Span("a", "pin", 1.0, 2.0, 0.25),
        Span("b", "load", 1.5, 9.0, 1.0),
        Span("a", "copy", 5.0, 6.0, 0.0),
        Span("a", "pin", 7.0, 8.0, 0.0),
    ]
    assert timeline.merged(found) == [
        Span("a", "pin", 1.0, 4.0, 0.75),
        Span("b", "load", 1.5, 9.0, 1.0),
        Span("a", "copy", 5.0, 6.0, 0.0),
        Span("a", "pin", 7.0, 8.0, 0.0),
    ]


def test_spans_come_back_from_a_log(spans: list[Span]) -> None:
    spans += [Span("a", "load\n", 1.25, 2.5, 0.125)]
    assert "\n" not in timeline.as_text()
    assert timeline.from_text(timeline.as_text()) == spans


def test_spans_of_another_process_are_among_all(spans: list[Span], monkeypatch: pytest.MonkeyPatch) -> None:
    spans += [Span("main", "load", 1.0, 2.0, 0.5)]
    sent = timeline.as_text(own=True)
    timeline.add_others(sent, "rank 1")
    assert [each.thread for each in timeline.every()] == ["main", "rank 1: main"]
    assert timeline.as_text(own=True) == sent, "what one process notes of another is not sent on"
    monkeypatch.setattr(timeline, "_MOST", 2)
    timeline.add_others(timeline.as_text(), "rank 2")
    assert len(timeline.others) == 2


def test_there_is_an_end_to_them(spans: list[Span], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MOST", 2)
    for _ in range(3):
        with timed("again"):
            pass
    assert len(spans) == 2
