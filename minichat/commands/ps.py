"""`minichat ps`: list this user's engines that run without a screen."""

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass

from engine.api.errors import EngineError
from minichat.doing import doing_late
from minichat.models.present import ask
from minichat.models.residents import Resident, home_of, residents
from minichat.shell.paths import locate


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One engine."""

    name: str
    pid: int
    state: str
    model: str
    uptime: float | None  # seconds; None if unknown
    running: int | None  # requests; None if unknown
    waiting: int | None
    socket: str
    dry_run: bool  # without weights: its replies are invented


def run(options: argparse.Namespace) -> int:
    with doing_late("waiting for the engines"):
        lines = asyncio.run(_look())
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    elif not lines:
        print("no engine is running in the background; start one with: minichat up")
    else:
        head = ("NAME", "PID", "STATE", "MODEL", "UP", "REQUESTS", "SOCKET")
        rows = [head, *(_cells(line) for line in lines)]
        widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


async def _look() -> list[ProcessRow]:
    found = []
    for resident in residents(home_of(locate())):
        if resident.running():
            found.append(_line(resident))
        else:
            resident.sweep()
    return await asyncio.gather(*found)


async def _line(resident: Resident) -> ProcessRow:
    record = resident.record
    if record is None:
        return ProcessRow(resident.name, 0, "starting", "", None, None, None, str(resident.socket), False)
    state, status = record.state, {}
    if state == "ready":
        try:
            status = await ask(resident, "/engine")
            state = status["state"]
        except EngineError:
            state = "no answer"  # it may be shutting down
    return ProcessRow(
        resident.name,
        record.pid,
        state,
        record.model,
        None if state == "damaged" else time.time() - record.started,
        status.get("running"),
        status.get("waiting"),
        str(resident.socket),
        record.dry_run,
    )


def _cells(line: ProcessRow) -> tuple[str, ...]:
    requests = "-" if line.running is None else f"{line.running} running, {line.waiting} waiting"
    model = f"{line.model}, dry run" if line.dry_run else line.model
    up = "-" if line.uptime is None else uptime(line.uptime)
    return (line.name, str(line.pid), line.state, model, up, requests, line.socket)


def uptime(seconds: float) -> str:
    """The duration in at most two units. It would be negative if the clock was set back since the start."""
    seconds = max(seconds, 0.0)
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}m"
    return f"{minutes}m {int(seconds % 60)}s" if minutes else f"{int(seconds)}s"
