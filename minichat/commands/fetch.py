"""`minichat fetch`: download a model from the hub, so that it can be used offline."""

import argparse
import json
import sys
import time

from engine.api.errors import EngineError
from engine.api.wire import encode_error
from engine.models.find import find_model
from minichat.commands.options import failed
from minichat.doing import doing
from minichat.models.progress import ProgressMeter

_EVERY = 0.2  # seconds between two progress updates


def run(options: argparse.Namespace) -> int:
    printer = ProgressPrinter(as_json=options.json)
    try:
        with doing(f"looking for {options.name}"):  # the hub may be slow, or never answer
            place = find_model(options.name, progress=printer)
    except EngineError as error:
        if options.json:
            print(json.dumps({"error": encode_error(error)}))
        return failed(error)
    print(json.dumps({"folder": str(place.folder)}) if options.json else place.folder)
    return 0


class ProgressPrinter:
    """Prints JSON lines for programs, or one updating line on a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._json, self._meter, self._printed_at = as_json, ProgressMeter(), 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        self._meter.update(done, total)
        if now - self._printed_at < _EVERY and done < total:
            return
        self._printed_at = now
        if self._json:
            print(json.dumps({"done": done, "total": total}), flush=True)
        elif sys.stderr.isatty():
            print(f"\r\x1b[K{self._meter.text()}", end="", file=sys.stderr, flush=True)
            if done >= total:
                print(file=sys.stderr)
