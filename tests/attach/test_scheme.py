"""An address with http:// of a server with TLS, and the other way around."""

from ssl import SSLError

import httpx
import pytest

from engine.api.errors import EngineDead
from minichat.clients.address import Address
from minichat.clients.link import Link
from tests.app.conftest import run


def wrong_version() -> SSLError:
    error = SSLError(1, "wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize(
    ("url", "kind", "cause", "end"),
    [
        (
            "http://box",
            httpx.RemoteProtocolError,
            OSError(),
            "lost; with TLS, its address begins with https://",
        ),
        (
            "https://box",
            httpx.ConnectError,
            wrong_version(),
            "; without TLS, its address begins with http://",
        ),
        ("http://box", httpx.ConnectError, ConnectionRefusedError(111, "refused"), "(refused)"),
        ("https://box", httpx.RemoteProtocolError, OSError(), "the connection was lost"),
    ],
)
@run
async def test_an_address_with_the_wrong_scheme(
    url: str, kind: type[httpx.RequestError], cause: Exception, end: str
) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        raise kind("Server disconnected without sending a response.") from cause

    link = Link(Address(url), transport=httpx.MockTransport(respond))
    with pytest.raises(EngineDead) as caught:
        await link.open()
    assert str(caught.value).endswith(end)
    await link.close()
