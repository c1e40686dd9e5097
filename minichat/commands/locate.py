"""`minichat locate`: where everything lies. Nothing is made by asking."""

import argparse
import json
import os

from minichat.models.catalogue import hub_cache
from minichat.shell.paths import locate
from minichat.shell.themes import shipped_themes


def run(options: argparse.Namespace) -> int:
    found = {**locate().named(), "shipped_themes": shipped_themes(), "models": hub_cache()}
    if options.json:
        print(json.dumps({name: str(path) for name, path in found.items()}, indent=2))
    else:
        for name, path in found.items():
            there = os.path.exists(path)  # false also where one may not look, where pathlib would raise
            print(f"{name:15} {path}{'' if there else '   (not there yet)'}")
    return 0
