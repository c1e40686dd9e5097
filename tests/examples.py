"""How many random examples the larger property tests run: `make soak` runs several times as many."""

import os

from hypothesis import settings

TIMES = int(os.environ.get("EXAMPLES", "1"))


def examples(count: int) -> settings:
    return settings(max_examples=count * TIMES)
