"""What is left on the terminal when the program has ended."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

from tests.app.conftest import run


@run
async def test_work_that_never_started_leaves_no_warning(bench: Callable[..., Any]) -> None:
    """Python would print it below the restored screen."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with bench() as it:
            await it.pilot.press(*"hello")
            it.main.composing._begin()
            it.app.exit()
        del it
        gc.collect()
    assert not [str(each.message) for each in seen if "never awaited" in str(each.message)]
