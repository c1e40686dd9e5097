"""Work for a client ends when the client leaves, and only then."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.server.http.leaving import CLIENT, Client, unless_gone

ended: list[str] = []


async def forever() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ended.append("canceled")
        raise
    return "never"


async def soon() -> str:
    await asyncio.sleep(0)
    return "done"


async def at_once() -> str:
    return "done"


async def late() -> str:
    raise TimeoutError("of the work")


async def never_told() -> Any:
    raise AssertionError("a client whose connection tells when it leaves is not asked")


def run(
    work: Coroutine[Any, Any, str], client: Client, then: Callable[[], object] = lambda: None
) -> str | None:
    async def all_of_it() -> str | None:
        asyncio.get_running_loop().call_soon(then)
        return await unless_gone({CLIENT: client}, never_told, work)

    ended.clear()
    return asyncio.run(asyncio.wait_for(all_of_it(), 10))


def test_work_ends_when_the_client_leaves() -> None:
    client = Client()
    assert run(forever(), client, client.leave) is None
    assert ended == ["canceled"]


def test_a_client_that_has_left_gets_no_work() -> None:
    client = Client()
    client.leave()
    assert run(forever(), client) is None
    assert ended == ["canceled"]


@pytest.mark.parametrize("work", [soon, at_once])
def test_the_result_of_work_for_a_client_that_stays(work: Callable[[], Coroutine[Any, Any, str]]) -> None:
    assert run(work(), Client()) == "done"


def test_work_may_notice_first_that_the_client_is_gone() -> None:
    """It is canceled where it waits next. What has no such place ends as usual."""
    client, steps = Client(), []

    async def writing() -> str:
        client.leave()
        client.leave()  # by the connection
        steps.append("written")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "never"

    async def last() -> str:
        client.leave()
        return "done"

    assert run(writing(), client) is None
    assert steps == ["written"]
    client = Client()
    assert run(last(), client) == "done"


def test_nothing_is_canceled_after_the_work() -> None:
    client, after = Client(), []

    async def all_of_it() -> None:
        async def last() -> None:
            client.leave()

        await unless_gone({CLIENT: client}, never_told, last())
        await asyncio.sleep(0.01)
        after.append("goes on")

    asyncio.run(all_of_it())
    assert after == ["goes on"]


def test_a_timeout_of_the_work_is_not_taken_for_a_client_that_left() -> None:
    with pytest.raises(TimeoutError, match="of the work"):
        run(late(), Client())


def test_the_connection_is_read_while_work_runs() -> None:
    listened: list[str] = []
    assert run(soon(), Client(lambda: listened.append("yes"))) == "done"
    assert listened == ["yes"]


@pytest.mark.parametrize(("work", "result"), [(forever, None), (soon, "done")])
def test_a_server_that_tells_only_those_who_receive(
    work: Callable[[], Coroutine[Any, Any, str]], result: str | None
) -> None:
    async def all_of_it() -> str | None:
        messages = [{"type": "http.request"}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            if result:
                await asyncio.Event().wait()
            return messages.pop(0)

        found = await unless_gone({}, receive, work())
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    assert asyncio.run(all_of_it()) == result
