"""Build the command line that restarts the same program."""

import argparse

_OPTIONS = {"runs_in": "engine", "no_screen": "no-screen"}  # attributes whose option has another name
_PLACES = ("url",)  # positional arguments


def words_of(options: argparse.Namespace, **changes: object) -> list[str]:
    """All given options, with some of them changed. The first question is left out: it has been sent."""
    words, places = [options.command], []
    for name, value in (vars(options) | changes).items():
        if name in ("command", "text") or value is None or value is False:
            continue
        if name in _PLACES:
            places.append(str(value))
            continue
        option = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
        values = value if isinstance(value, list) else [value]
        words += [option] if value is True else [f"{option}={each}" for each in values]
    return [*words, *(["--", *places] if places else [])]
