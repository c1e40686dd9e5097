"""This machine as a rank of an engine on another one: connects, and starts the rank's process here."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from engine.api.errors import EngineError
from engine.api.places import MeetingPlace
from engine.distributed.crews.channels import RankChannels, open_channels
from engine.distributed.member import REFUSED
from engine.host.joining import WrongSecret
from engine.host.launching import child_environment

COMMAND = (sys.executable, "-P", "-m", "engine.distributed.rank")
_AGAIN = 1.0  # seconds until the next try to connect


def be_rank(place: MeetingPlace, device: str, say: Callable[[str], None]) -> NoReturn:
    """Be a rank of one engine after another: it may be started again. Returns only by an error."""
    secret = place.secret()
    while True:
        say(f"connecting to the engine at {place.host}:{place.port}")
        channels = _connected(place, secret)
        say("connected")
        code = _run(channels, device)
        if code == REFUSED:
            raise EngineError("this machine cannot be a rank of that engine")
        say(f"the engine has ended, or its machine is gone (exit code {code})")


def _connected(place: MeetingPlace, secret: bytes) -> RankChannels:
    """Connect as soon as the engine is there."""
    while True:
        try:
            return open_channels((place.host, place.port), secret)
        except WrongSecret:
            raise
        except OSError:
            time.sleep(_AGAIN)


def _run(channels: RankChannels, device: str) -> int:
    """Start the rank's process with these connections, and wait for its end."""
    lifeline, held = os.pipe()
    given = {name: each.fileno() for name, each in channels._asdict().items()}
    try:
        process = subprocess.Popen(
            [
                *COMMAND,
                json.dumps(given | {"device": device, "lifeline": lifeline, "host": channels.own_host}),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[*given.values(), lifeline],
            env=child_environment(),
            start_new_session=True,  # it ends with this process, by the pipe
        )  # fmt: skip
        for each in channels:
            each.close()
        return process.wait()
    finally:
        os.close(lifeline)
        os.close(held)
