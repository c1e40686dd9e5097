"""`minichat down`: stop an engine started by `minichat up`; by default, running requests may finish."""

import argparse
import asyncio
import signal
import sys
import time
from typing import Any

from engine.api.errors import EngineError
from minichat.commands.options import failed
from minichat.models.present import WITHIN, ask
from minichat.models.residents import Resident, home_of
from minichat.shell.paths import locate

_LOOK_EVERY = 0.05  # seconds
_STARTS_WITHIN = 5.0  # seconds for a new process to write its record
_ENDS_AT_ONCE = 3.0  # seconds before it is killed
_GONE_WITHIN = 0.3  # seconds until the engine sees that a screen has been closed
_SAY_AFTER = 1.0  # seconds of waiting before the reason is printed
_DRAINS_WITHIN = 30.0  # seconds for running requests; the default of --drain
_CLOSES_WITHIN = 15.0  # seconds for the end of its process after that


def run(options: argparse.Namespace) -> int:
    try:
        resident = Resident(home_of(locate()), options.name)
        if not _known(resident):
            resident.sweep()
            raise EngineError(f"no engine named {resident.name} is running; list engines with: minichat ps")
        unread = asyncio.run(_unread(resident))
        if unread and not _may_lose(unread, resident, asks=not options.now):
            return 1
        if not resident.tell(signal.SIGTERM):
            resident.check_record()  # it may not name a process
        if options.now:
            _at_once(resident)
        elif not _ended(resident, _SAY_AFTER):
            wait = f"waiting up to {_DRAINS_WITHIN:g} s for running requests"
            print(f"minichat: {wait}; --now stops at once", file=sys.stderr)
            if not _ended(resident, _DRAINS_WITHIN + _CLOSES_WITHIN):
                now = resident.command("down")
                raise EngineError(f"{resident.name} has not stopped; to end it at once, run {now} --now")
        resident.sweep()
    except EngineError as error:
        return failed(error)
    print(f"minichat: {resident.name} stopped", file=sys.stderr)
    return 0


def _may_lose(unread: int, resident: Resident, *, asks: bool) -> bool:
    """Say that replies will be lost, and on a terminal ask."""
    what, it = ("reply", "it") if unread == 1 else ("replies", "them")
    lost = f"{unread} {what} that no screen has fetched will be lost"
    print(f"minichat: {lost}; to keep {it}, run {resident.command('attach')} first", file=sys.stderr)
    if not (asks and sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"minichat: stop {resident.name} all the same? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _unread(resident: Resident) -> int:
    """The replies of closed screens that no other screen has fetched."""
    record = resident.record
    if record is None or record.state != "ready":
        return 0
    asking = asyncio.ensure_future(_unread_replies(resident))
    if not (await asyncio.wait({asking}, timeout=_SAY_AFTER))[0]:
        wait = f"waiting up to {WITHIN:g} s for the list of its replies"
        print(f"minichat: {resident.name} has not answered yet; {wait}", file=sys.stderr)
    try:
        return sum(not each["readers"] for each in await asking)
    except EngineError:  # it may hang, and must be stopped all the same
        return 0


async def _unread_replies(resident: Resident) -> list[dict[str, Any]]:
    for last in (False, True):
        replies = (await ask(resident, "/engine/replies"))["replies"]
        unread = [each for each in replies if each.get("unread", False)]
        if last or not any(each["readers"] for each in unread):
            break
        await asyncio.sleep(_GONE_WITHIN)
    return unread


def _known(resident: Resident) -> bool:
    """Whether it is running. Wait for a new process to write its record."""
    until = time.monotonic() + _STARTS_WITHIN
    while resident.running():
        if resident.record is not None:
            return True
        if time.monotonic() > until:
            raise EngineError(f"the engine {resident.name} does not report its state; see {resident.log}")
        time.sleep(_LOOK_EVERY)
    return False


def _at_once(resident: Resident) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):  # a second SIGTERM skips the drain
        if _ended(resident, _LOOK_EVERY):
            return
        resident.tell(number)
        if _ended(resident, _ENDS_AT_ONCE):
            return
    raise EngineError(f"cannot stop the engine {resident.name}; see {resident.log}")


def _ended(resident: Resident, within: float) -> bool:
    until = time.monotonic() + within
    while resident.running():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_EVERY)
    return True
