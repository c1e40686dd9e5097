"""A screen with an engine of its own names the background engines that can be opened."""

from minichat.commands.tui import _beside
from minichat.shell.paths import locate
from tests.attach.test_residents import User, user
from tests.cli.conftest import run

__all__ = ["run", "user"]


def test_a_dead_engine_is_not_said_to_run(user: User) -> None:
    user.up()
    assert _beside(locate()) == "1 engine runs in the background: minichat attach"
    record = user.resident.record
    assert record is not None
    record.changed(state="dead", error="the device coughed").write(user.resident.file)
    assert _beside(locate()) == ""
