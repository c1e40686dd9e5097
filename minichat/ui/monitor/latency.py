"""Token latencies, the phases of a step, and the use of memory."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple

from engine.api.snapshot import Quantiles, Snapshot, StepTimes
from minichat.models.progress import size
from minichat.ui.monitor.figures import duration, number, whose_memory
from minichat.ui.monitor.graphs import shares
from minichat.ui.monitor.owners import Owner
from minichat.ui.monitor.pane import Line, Pane, Row, Span

_PARTS = ("plan", "launch", "wait", "commit")
_LOOKS = ("graph", "second", "good", "warn")
_ONE_BY_ONE = 4  # ranks and stages; of more, the mean is shown
_EVERY = 0.9  # seconds on the engine's clock: faster updates are hard to read
_ABOVE = 5  # lines above those of memory
_MEMORY = {
    "weights": "weights",
    "cache": "cache",
    "host_cache": "host",
    "device_free": "free",
    "draft": "draft",
    "adapters": "adapters",
}  # the last ones are left out where there is no room


class Latency(Pane):
    """Time to first token, time between tokens, step time and memory."""

    number, title = 4, "latency"

    @property
    def useful_lines(self) -> int | None:
        return None if self.snapshot is not None and _measured(self.snapshot) else 2

    def update_from(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        """Update once a second while requests run; show a first measurement at once."""
        before = self.snapshot
        soon = before is not None and snapshot.running and 0 <= snapshot.at - before.at < _EVERY
        if before is None or not soon or _measured(snapshot) > _measured(before):
            super().update_from(snapshot, owners)

    def rows(self, width: int, height: int) -> Sequence[Line]:
        if (shot := self.snapshot) is None:
            return super().rows(width, height)
        times = shot.step_times
        facts = [f"step {duration(times.total)}"]
        if shot.traffic:
            facts.append(f"sends {size(shot.traffic)}/s")
        if shot.latency_target is not None:
            facts.append(f"TTFT target {shot.latency_target * 1e3:g} ms")
        if shot.prompt_limit:
            facts.append(f"prompts {shot.prompt_limit:,} a step")
        shared, load, whose = _bubbles(shot.bubbles) or _ranks(shot), _load(shot), whose_memory(shot)
        heading = self.heading(*facts, load if shared else "", right=shared or load)
        if not _measured(shot) and height == 2:
            words = " no measurements" + " yet" * (not shot.finished)  # those of a lost engine are gone
            return (heading, ((words, "muted"),))
        return (
            heading,
            _quantiles("engine TTFT", shot.ttft),
            _quantiles("next token", shot.itl),
            self._bar(times, width),
            _parts(times, self.signs.parts, width),
            *_memory(shot.memory, whose and f"{whose}: ", width, height - _ABOVE, self.signs.cut),
        )

    def _bar(self, times: StepTimes, width: int) -> Row:
        cells = shares(astuple(times), max(0, width - 2))
        bars = zip(self.signs.parts, cells, _LOOKS, strict=True)
        return ((" ", ""), *((sign * count, look) for sign, count, look in bars))


def _measured(shot: Snapshot) -> int:
    """The number of figures that have been measured."""
    return sum(known > 0 for known in (shot.ttft.count, shot.itl.count, shot.step_times.total))


def _load(shot: Snapshot) -> str:
    """The GPU's load, or for each rank that of its own, if the driver reports it."""
    if (load := shot.load) is None:
        return ""
    each = [rank.load.busy for rank in shot.ranks if rank.load is not None] or [load.busy]
    return f"GPU {_shares(each)}  {number(load.watts, '.0f')} of {number(load.limit, '.0f')} W"


def _quantiles(name: str, seconds: Quantiles) -> Row:
    return (
        (f" {name:<12}", "muted"),
        ("p50 ", "muted"),
        (f"{duration(seconds.p50):>7}", "value"),
        ("  p99 ", "muted"),
        (f"{duration(seconds.p99):>7}", "value"),
        (f"  n {seconds.count:,}", "muted"),
    )


def _parts(times: StepTimes, signs: str, width: int) -> Row:
    """The bar's legend in milliseconds, or dashes before the first step; words are shortened to fit."""
    for letters in (6, 2, 0):
        spans: list[Span] = [(" ", "")]
        for name, sign, seconds, look in zip(_PARTS, signs, astuple(times), _LOOKS, strict=True):
            taken = number(seconds * 1e3, ".1f" if seconds < 0.0995 else ".0f") if times.total else "-"
            spans += [(f"{sign} ", look), (f"{name[:letters]} ".lstrip(), "muted"), (f"{taken} ", "value")]
        if _length(spans) <= width + 1:
            break
    return tuple(spans)


def _ranks(shot: Snapshot) -> str:
    """The ranks that share the model, and for each the share of the time in which it joins."""
    if not shot.ranks:
        return ""
    joining = f"  joining {_shares([each.joining for each in shot.ranks])}" if shot.joining else ""
    return f"{len(shot.ranks)} ranks{joining}"


def _bubbles(bubbles: Sequence[float]) -> str:
    """The stages of a pipeline, and for each the share of the time in which it has nothing to do."""
    return f"{len(bubbles)} stages  bubble {_shares(bubbles)}" if bubbles else ""


def _shares(found: Sequence[float]) -> str:
    each = found if len(found) <= _ONE_BY_ONE else [sum(found) / len(found)]
    return " ".join(number(share, ".0%") for share in each)


def _memory(memory: dict[str, int], whose: str, width: int, lines: int, cut: str) -> list[Row]:
    """What each kind takes, on up to so many lines; a sign if some are left out."""
    rows: list[list[Span]] = [[(f" {whose}", "muted")]]
    for name, taken in ((name, memory[key]) for key, name in _MEMORY.items() if memory.get(key)):
        words = size(taken)
        if len(rows[-1]) > 1 and _length(rows[-1]) + len(f"{name} {words}") > width:
            rows.append([(" ", "")])
        rows[-1] += [(f"{name} ", "muted"), (words, "value"), ("  ", "")]
    shown = rows[: max(lines, 1)]
    if len(shown) < len(rows):
        last = shown[-1]
        while len(last) > 4 and _length(last[:-1]) >= width:
            del last[-3:]
        blanks = max(0, min(2, width - 1 - _length(last[:-1])))
        last[-1:] = [(f"{' ' * blanks}{cut}", "muted")]
    return [tuple(row) for row in shown]


def _length(spans: Sequence[Span]) -> int:
    return sum(len(text) for text, _ in spans)
