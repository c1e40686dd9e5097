"""`minichat rank`: be a rank of an engine on another machine."""

import argparse
import sys

from engine.api.errors import EngineError
from engine.api.places import MeetingPlace
from minichat.commands.options import failed


def run(options: argparse.Namespace) -> int:
    from engine.distributed.crews.joined import be_rank

    try:
        be_rank(MeetingPlace.parse(options.meet), options.device, say)
    except EngineError as error:
        text = str(error).removeprefix("meet: ")  # its argument has no name
        return failed(type(error)(text.replace("meet must", "the address must", 1)))
    except KeyboardInterrupt:
        return 130


def say(line: str) -> None:
    print(f"minichat: {line}", file=sys.stderr, flush=True)
