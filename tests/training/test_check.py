"""Each checker accepts a right reply and rejects a wrong one."""

import pytest

from training.check import Check, Exact, Honest, JsonIs, StoryOf, Terms, Words

NAMES = frozenset({"Mia", "Tom"})
STORY = StoryOf("Mia", "fox", NAMES)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (Terms(("16|sixteen", "block")), "A Block holds sixteen tokens.", "A block holds 32 tokens."),
        (Words(("3",)), "There are 3 items.", "There are 13 items."),
        (Words(("= 7",)), "3 + 4 = 7", "3 + 4 = 77"),
        (Exact("b, a"), " b, a\n", "a, b"),
        (JsonIs({"age": 3}), '```json\n{"age": 3}\n```', '{"age": "3"}'),
        (JsonIs([1]), "[1]", "[1"),
        (Honest(), "I don't know that. I am a tiny demo model.", "Paris is the capital of France."),
        (STORY, "Mia was a fox. Mia slept.", "Mia was a fox. Mia sle"),
        (STORY, "Mia was a fox. Mia slept.", "Mia was a fox. Tom and Mia slept."),
        (STORY, "Mia was a fox. Mia slept.", "Mia was a hen. Mia slept."),
    ],
)
def test_right_and_wrong(check: Check, right: str, wrong: str) -> None:
    assert check.right(right)
    assert not check.right(wrong)
