"""The command line that starts the same program once more."""

import argparse

_OPTIONS = {"runs_in": "engine", "no_screen": "no-screen"}  # whose names are others here
_PLACES = ("url",)  # what is given without an option


def words_of(options: argparse.Namespace, **changes: object) -> list[str]:
    """All that was given, with some of it changed; what was asked has been asked."""
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
