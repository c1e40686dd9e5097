"""How long an engine has run, as `minichat ps` says it."""

import pytest

from minichat.commands.ps import uptime


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5.0, "0s"),
        (0.4, "0s"),
        (59.9, "59s"),
        (3599, "59m 59s"),
        (86_399, "23h 59m"),
        (8_640_000, "100d 0h"),
    ],
)
def test_uptime_in_two_units(seconds: float, said: str) -> None:
    """Also after the clock was set back."""
    assert uptime(seconds) == said
