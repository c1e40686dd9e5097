"""This machine as a rank of an engine on another one: connects, and starts the rank's process here."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, NamedTuple, NoReturn

from engine.api.errors import EngineError
from engine.api.places import MeetingPlace
from engine.distributed.crews.channels import RankChannels, open_channels
from engine.distributed.link import REFUSED
from engine.host.launching import child_environment

COMMAND = (sys.executable, "-P", "-m", "engine.distributed.rank")
_AGAIN = 1.0  # seconds until the next try to connect


class StartedRank(NamedTuple):
    process: subprocess.Popen[bytes]
    lifeline: int  # once this is closed, the process ends


def be_rank(place: MeetingPlace, device: str, say: Callable[[str], None]) -> NoReturn:
    """Be a rank of one engine after another: it may be started again. Returns only by an error."""
    secret = place.secret()
    while True:
        say(f"connecting to the engine at {place.host}:{place.port}")
        process, lifeline = start_rank(place, secret, device)
        say("connected")
        try:
            code = process.wait()
        finally:
            os.close(lifeline)
        if code == REFUSED:
            raise EngineError("this machine cannot be a rank of that engine")
        say(f"the engine has ended, or its machine is gone (exit code {code})")


def start_rank(
    place: MeetingPlace,
    secret: bytes,
    device: str,
    within: float = float("inf"),
    out: IO[bytes] | None = None,
) -> StartedRank:
    """Connect as soon as the engine is there, and start the rank's process. `out`: its log."""
    channels = _connected((place.host, place.port), secret, time.monotonic() + within)
    try:
        return _started(channels, device, out)
    finally:
        for each in channels:
            each.close()


def _connected(address: tuple[str, int], secret: bytes, until: float) -> RankChannels:
    while True:
        try:
            return open_channels(address, secret)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_AGAIN)


def _started(channels: RankChannels, device: str, out: IO[bytes] | None) -> StartedRank:
    lifeline, held = os.pipe()
    fds = {name: each.fileno() for name, each in channels._asdict().items()}
    given = fds | {"device": device, "lifeline": lifeline, "host": channels.own_host}
    try:
        process = subprocess.Popen(
            [*COMMAND, json.dumps(given)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=[*fds.values(), lifeline],
            env=child_environment(),
            start_new_session=True,  # Ctrl+C is for this process
        )
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(lifeline)
    return StartedRank(process, held)
