"""`minichat down`: ends an engine that `minichat up` started; what runs may finish, unless told otherwise."""

import argparse
import signal
import sys
import time

from engine.api.errors import EngineError
from minichat.commands.options import failed
from minichat.models.residents import Resident, home_of
from minichat.shell.paths import locate

_LOOK_EVERY = 0.05  # seconds
_STARTS_WITHIN = 5.0  # seconds until a fresh process says who it is
_ENDS_AT_ONCE = 3.0  # seconds; after them it is killed
_SAY_AFTER = 1.0  # seconds of waiting, after which a person wants to know for what


def run(options: argparse.Namespace) -> int:
    try:
        resident = Resident(home_of(locate()), options.name)
        if not _known(resident):
            resident.sweep()
            raise EngineError(f"no engine called {resident.name} runs here; minichat ps lists those that do")
        resident.tell(signal.SIGTERM)
        if options.now:
            _at_once(resident)
        elif not _ended(resident, _SAY_AFTER):
            print("minichat: it is ending; what runs has 30 s, and --now ends it at once", file=sys.stderr)
            while not _ended(resident, 60.0):
                pass
        resident.sweep()
    except EngineError as error:
        return failed(error)
    print(f"minichat: {resident.name} has ended", file=sys.stderr)
    return 0


def _known(resident: Resident) -> bool:
    """Whether it runs; one that has just been started is waited for until it says who it is."""
    until = time.monotonic() + _STARTS_WITHIN
    while resident.running():
        if resident.record is not None:
            return True
        if time.monotonic() > until:
            raise EngineError(f"the engine {resident.name} does not say who it is; its log is {resident.log}")
        time.sleep(_LOOK_EVERY)
    return False


def _at_once(resident: Resident) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second SIGTERM, and then no more words
        if _ended(resident, _LOOK_EVERY):
            return
        resident.tell(number)
        if _ended(resident, _ENDS_AT_ONCE):
            return
    raise EngineError(f"the engine {resident.name} cannot be ended; its log is {resident.log}")


def _ended(resident: Resident, within: float) -> bool:
    until = time.monotonic() + within
    while resident.running():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_EVERY)
    return True
