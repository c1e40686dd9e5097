"""`minichat down` says how many replies are lost because no screen has fetched them."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from engine.api.errors import EngineError
from minichat.commands import down
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
        "minichat: main stopped\n"
        "minichat: 2 replies that no screen had fetched are lost; to keep them, run minichat attach first\n",
    )


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
    said = "minichat: main does not answer; waiting up to 3 s for the list of its replies\n"
    assert capsys.readouterr().err == said
