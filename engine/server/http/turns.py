"""The order of requests that arrive together: a few begin in each turn of the event loop."""

import asyncio
from collections import deque

_TOGETHER = 4  # requests; reading one takes about a millisecond


class Turns:
    """Has requests begin in the order of their arrival.

    The event loop alone would run one step of each request in turn, so that the first one is answered only
    after the last one has been read. With turns, it answers those that have begun before it reads more.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._begun = 0  # in this turn

    async def begin(self) -> None:
        """Wait until this request may begin. If no others have just begun, it need not wait."""
        if self._begun == 0:
            asyncio.get_running_loop().call_soon(self._next)
        if self._begun < _TOGETHER and not self._waiting:
            self._begun += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < _TOGETHER:
            if not (turn := self._waiting.popleft()).done():  # its request has not been canceled
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next)
