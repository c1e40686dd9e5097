"""An empty value, as of a shell variable that is not set, is refused with the name of its option."""

import pytest

from minichat.cli import COMMANDS, _alone
from tests.cli.conftest import Run

TEXTS = {"--system", "--stop", "--regex", "--choice", "--speculate", "--cors"}  # may be empty, or say why not


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_takes_an_empty_value(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = _alone(command)
    for action in parser._actions:
        if action.nargs == 0 or not action.option_strings or set(action.option_strings) <= TEXTS:
            continue
        name = action.option_strings[0]
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([f"{name}="])
        assert ended.value.code == 2, name
        assert f"argument {name}: " in capsys.readouterr().err


def test_clearing_no_folder_clears_nothing(run: Run) -> None:
    ran = run("cache", "--clear", "--folder", "")
    assert (ran.code, ran.out) == (2, "")
    assert "argument --folder: must not be empty" in ran.err
