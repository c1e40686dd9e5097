"""`minichat down` says how many replies are lost because no screen has fetched them."""

import asyncio
import sys
from argparse import Namespace
from io import StringIO
from typing import Any
from unittest.mock import Mock, PropertyMock

import pytest

from engine.api.errors import EngineError
from minichat.commands import down, tui
from minichat.models.residents import Waiting
from minichat.shell.paths import locate
from tests.attach.test_residents import User, begin_reply, run, user
from tests.waiting import becomes

__all__ = ["run", "user"]


def test_down_counts_the_replies_that_no_screen_has_fetched(user: User) -> None:
    user.up()
    with user.client() as client:
        read, *unread = (begin_reply(client, 3) for _ in range(3))
        assert client.get(f"/engine/replies/{read}").status_code == 200
        records = lambda: client.get("/engine/replies").json()["replies"]  # noqa: E731
        assert becomes(lambda: all(each["finish"] for each in records()))
        assert [each["id"] for each in records() if each["unread"]] == unread
    code, _, err = user.say("down")
    assert (code, err) == (
        0,
        "minichat: 2 replies that no screen has fetched will be lost; "
        "to keep them, run minichat attach first\n"
        "minichat: main stopped\n",
    )


def test_a_start_that_down_stops_says_so() -> None:
    """Its log would not explain it."""
    starting = Mock(state="starting", total=0)
    resident = Mock(up="minichat up", died=lambda: "")
    resident.name, resident.running.side_effect = "main", [False, True, False, False]
    type(resident).record = PropertyMock(side_effect=[starting, starting, None])
    with pytest.raises(EngineError, match=r"^the engine main was stopped; start it again: minichat up$"):
        asyncio.run(Waiting(resident, ["--dry-run"]).ensure(lambda done, total: None))


def test_a_screen_of_its_own_names_the_engines_in_the_background(user: User) -> None:
    paths = locate()
    assert tui._beside(paths) == ""
    user.up()
    assert tui._beside(paths) == "1 engine runs in the background: minichat attach"
    user.say("down")
    assert tui._beside(paths) == ""


@pytest.mark.parametrize(("answer", "stops"), [("y\n", True), ("\n", False), ("", False), ("no\n", False)])
def test_on_a_terminal_it_asks_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, stops: bool
) -> None:
    terminal = StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    resident = Mock(command=lambda word: f"minichat {word}")
    resident.name = "main"
    assert down._may_lose(1, resident, asks=True) is stops
    assert capsys.readouterr().err == (
        "minichat: 1 reply that no screen has fetched will be lost; to keep it, run minichat attach first\n"
        "minichat: stop main all the same? [y/N] "
    )
    assert down._may_lose(1, resident, asks=False)


def test_down_says_that_it_waits_for_a_silent_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(resident: Mock, path: str) -> Any:
        await asyncio.sleep(0.1)
        raise EngineError("no answer within 3 s")

    monkeypatch.setattr(down, "ask", ask)
    monkeypatch.setattr(down, "_SAY_AFTER", 0.01)
    resident = Mock(record=Mock(state="ready"))
    resident.name = "main"
    assert asyncio.run(down._unread(resident)) == 0
    said = "minichat: main has not answered yet; waiting up to 3 s for the list of its replies\n"
    assert capsys.readouterr().err == said


def test_a_screen_that_has_just_been_closed_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [[{"unread": True, "readers": count}, {"unread": False, "readers": 1}] for count in (1, 0)]

    async def ask(*_: object) -> dict[str, Any]:
        return {"replies": answers.pop(0)}

    monkeypatch.setattr(down, "ask", ask)
    assert asyncio.run(down._unread(Mock(record=Mock(state="ready")))) == 1 and not answers


def test_down_does_not_wait_forever_for_an_engine_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_SAY_AFTER", "_CLOSES_WITHIN", "_DRAINS_WITHIN"):
        monkeypatch.setattr(down, name, 0.01)
    resident = Mock(record=Mock(state="loading"), command=lambda word: f"minichat {word} --name work")
    resident.name = "work"
    resident.running.return_value = True
    monkeypatch.setattr(down, "Resident", lambda *_: resident)
    assert down.run(Namespace(name="work", now=False)) == 1
    assert capsys.readouterr().err == (
        "minichat: waiting up to 0.01 s for running requests; --now stops at once\n"
        "minichat: work has not stopped; to end it at once, run minichat down --name work --now\n"
    )
