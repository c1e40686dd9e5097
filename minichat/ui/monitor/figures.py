"""Formats of the monitor's figures: short, and of a steady width."""

import time
from collections.abc import Iterable
from math import inf, isfinite

from engine.api.snapshot import Snapshot
from minichat.models import progress
from minichat.plural import plural

_RANGES = 3
_REPLICA, _PROCESS = 42, 32  # bits after which a request's number says its replica, and its process

wall_clock = time.time  # pictures and tests have their own
CALENDAR_EVERY = 60.0  # seconds; a timer until midnight would stop while the machine sleeps


def duration(seconds: float) -> str:
    """Format a duration: "8.1 ms", "92 ms", "1.24 s", "1,240 s", "1 h 02 min"; "-" if none was measured."""
    if not 0 < seconds < inf:
        return "-"
    if seconds >= 3599.5:
        return progress.duration(seconds)
    if seconds < 0.9995:
        digits = 2 if seconds < 0.000995 else 1 if seconds < 0.00995 else 0
        return f"{seconds * 1e3:.{digits}f} ms"
    return f"{seconds:.2f} s" if seconds < 99.995 else f"{seconds:,.0f} s"


def number(value: float, form: str) -> str:
    """Format a number; "-" for one that an engine elsewhere could not measure."""
    return format(value, form) if isfinite(value) else "-"


def per_second(rate: float) -> str:
    """Format a rate without its unit: "1,240", "38", "0.24"."""
    return number(rate, ",.0f" if rate >= 10 else ".2g")


def token_rate(rate: float) -> str:
    """Format tokens per second: "38 tok/s", "0.24 tok/s"."""
    return f"{per_second(rate)} tok/s"


def brief(count: int) -> str:
    """Format a count in at most four cells: "9999", "131k", "1.2M"."""
    if count < 10_000:
        return f"{count}"
    if count < 999_500:
        return f"{count / 1e3:.0f}k"
    return f"{count / 1e6:.{1 if count < 9_950_000 else 0}f}M"


def clock_time(at: float) -> str:
    """Format the local time of a moment: "09:24:05"."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def day(at: float) -> str:
    """Format the local day of a moment: "Nov 22", in other years "2025-11-22"; empty if it is today."""
    then, today = time.localtime(at), time.localtime(wall_clock())
    if then[:3] == today[:3]:
        return ""
    this_year = then.tm_year == today.tm_year
    return f"{time.strftime('%b', then)} {then.tm_mday}" if this_year else time.strftime("%Y-%m-%d", then)


def whose_memory(shot: Snapshot) -> str:
    """Whose memory the figures are, if not of one process: "one rank", "2 replicas", "1 of 2 replicas", or
    in a fleet of shared models "one rank per replica", which is a sum.
    """
    several = len(shot.replicas) > 1
    if shot.ranks:
        return "one rank per replica" if several else "one rank"
    return fleet_size(shot) if several else ""


def fleet_size(shot: Snapshot) -> str:
    """How many replicas there are: "2 replicas", "1 of 2 replicas" if only one runs."""
    count, running = len(shot.replicas), shot.running_replicas
    return f"{f'{running} of ' if running < count else ''}{plural(count, 'replica')}"


def request_name(id: int) -> str:
    """A request's number in its engine's process, after that of its replica in a fleet: "12", "1/12"."""
    replica, number = id >> _REPLICA, id % 2**_PROCESS
    return f"{replica}/{number}" if replica else f"{number}"


def ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, "0..6, 560..566"; only the first few of many."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = [f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:_RANGES]]
    return ", ".join(shown + ["..."] * (len(runs) > _RANGES))
