"""An engine whose record is damaged while it runs: commands say so at once, and down still ends it."""

import json
import re

from tests.attach.test_residents import User, user
from tests.cli.conftest import run
from tests.waiting import becomes

__all__ = ["run", "user"]

UNKNOWN = "is damaged, so nothing is known of the running engine main"


def test_a_damaged_record_is_reported_and_its_engine_can_be_stopped(user: User) -> None:
    user.up()
    resident = user.resident
    pid = user.ps()[0]["pid"]
    resident.file.write_text("{bad")
    says = f"{resident.file} {UNKNOWN}; stop it: minichat down"
    assert user.say("up", "--no-screen") == (1, "", f"minichat: {says}\n")
    assert user.say("up", "--no-screen", "--model=other", "--name=main") == (1, "", f"minichat: {says}\n")
    [line] = user.ps()
    assert (line["pid"], line["state"], line["model"], line["uptime"]) == (pid, "damaged", "", None)
    assert re.search(r" damaged +- +- ", user.say("ps")[1])
    assert user.say("down", "--now").code == 0
    assert not resident.running()
    user.up()  # with a new record
    assert becomes(lambda: user.ps()[0]["state"] == "ready")


def test_a_record_that_names_no_process_says_what_to_do(user: User) -> None:
    user.up()
    resident = user.resident
    held = resident.lock.read_text()
    for damage in "", "{bad", json.dumps({"pid": 0}), "[]":
        resident.file.write_text(damage)
        resident.lock.write_text("")  # an older minichat wrote nothing there
        code, _, err = user.say("down")
        way = f"end the process that has {resident.lock} open"
        assert (code, err) == (1, f"minichat: {resident.file} {UNKNOWN}; {way}\n")
    resident.lock.write_text(held)
    assert user.say("down", "--now").code == 0
