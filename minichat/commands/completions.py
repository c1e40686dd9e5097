"""`minichat completions`: print a completion script for a shell."""

import argparse

from minichat.completions import bash, fish, zsh
from minichat.completions.table import table

_SCRIPTS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


def run(options: argparse.Namespace) -> int:
    print(_SCRIPTS[options.shell](table()), end="")
    return 0
