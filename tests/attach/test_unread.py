"""`minichat down` says how many replies are lost because no screen has fetched them."""

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
