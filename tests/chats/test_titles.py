"""Which titles the user chose: those do not change with the first message."""

import pytest

from minichat.chats.model import own_title, title_from


@pytest.mark.parametrize(
    ("title", "first", "own"),
    [
        ("", "", False),
        ("mine", "", True),
        ("Hi", "Hi", False),
        ("Hi (fork 2)", "Hi", False),
        ("Hi (fork)", "Hi\nthere", False),
        ("History of Rome", "Hi", True),
        ("Hi (fork 2) of mine", "Hi", True),
        (title_from("word " * 20), "word " * 20, False),
    ],
)
def test_a_title_is_the_users_if_it_is_not_that_of_the_first_message(
    title: str, first: str, own: bool
) -> None:
    assert own_title(title, first) is own
