"""The parts of the screen, in the order that the help, the palette and the last line list them.

To add one, write a file here that declares a `Feature` and list it below. A package outside this tree
registers its features under the entry point group `minichat.features`.
"""

import os
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from minichat.features.adapters import ADAPTERS
from minichat.features.chats.broadcast import BROADCAST
from minichat.features.chats.chats import CHATS
from minichat.features.chats.export import EXPORT
from minichat.features.chats.find import FIND
from minichat.features.chats.jump import JUMP
from minichat.features.chats.messages import MESSAGES
from minichat.features.chats.overview import OVERVIEW
from minichat.features.chats.replies import REPLIES
from minichat.features.decoding.feature import DECODING
from minichat.features.feature import Feature
from minichat.features.help import HELP
from minichat.features.leaving import INTERRUPT, LEAVING
from minichat.features.links import LINKS
from minichat.features.models import MODELS
from minichat.features.monitor import MONITOR
from minichat.features.palette import PALETTE
from minichat.features.picking.feature import PICKING
from minichat.features.quantization.feature import QUANTIZATION
from minichat.features.replicas import REPLICAS
from minichat.features.saving import SAVING
from minichat.features.switches import SWITCHES
from minichat.features.terminal import TERMINAL
from minichat.features.tour.feature import TOUR
from minichat.features.views import VIEWS
from minichat.features.why.feature import WHY

BUILT_IN: tuple[Feature, ...] = (
    REPLIES,
    MESSAGES,
    PICKING,
    BROADCAST,
    CHATS,
    JUMP,
    OVERVIEW,
    FIND,
    EXPORT,
    HELP,
    MONITOR,
    DECODING,
    QUANTIZATION,
    VIEWS,
    WHY,
    SWITCHES,
    REPLICAS,
    ADAPTERS,
    TERMINAL,
    PALETTE,
    INTERRUPT,
    MODELS,
    TOUR,
    LEAVING,
    SAVING,
    LINKS,
)
GROUP = "minichat.features"


def installed() -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """The built-in features and those of installed packages; and why any of those could not be loaded."""
    found, problems = list(BUILT_IN), []
    for entry in sorted(_entry_points(tuple(map(_changed, sys.path))), key=lambda entry: entry.name):
        try:
            feature = entry.load()
        except Exception as error:  # a broken third-party package must not keep the screen from opening
            problems.append(f"cannot load the feature {entry.name} ({entry.value}): {error}")
            continue
        if problem := conflict(feature, found):
            problems.append(f"the feature {entry.name} ({entry.value}) was skipped: {problem}")
        else:
            found.append(feature)
    return tuple(found), tuple(problems)


@lru_cache(maxsize=1)
def _entry_points(folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """The entry points in these folders. Python reads a file of each installed package to find them."""
    return tuple(entry_points(group=GROUP))


def _changed(folder: str) -> tuple[str, int]:
    """The folder, and when a package was last installed in it."""
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:  # not every place that Python imports from is a folder
        return folder, 0


def conflict(feature: object, others: list[Feature]) -> str:
    """Why the feature conflicts with the others; empty if it does not."""
    if not isinstance(feature, Feature):
        return f"it is {type(feature).__name__!r}, not a Feature"
    if any(each.name == feature.name for each in others):
        return f"another feature is named {feature.name!r}"
    ids = {command.id for each in others for command in each.commands}
    keys = {
        key: command.id for each in others for command in each.commands for key in command.keys.split(",")
    }
    for command in feature.commands:
        if command.id in ids:
            return f"the command {command.id!r} already exists"
        for key in filter(None, command.keys.split(",")):
            if key in keys:
                return f"its key {key!r} is already bound to {keys[key]}"
    return ""
