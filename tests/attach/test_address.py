"""The address of a server as users write it, and the port that is meant."""

import asyncio

import httpx
import pytest

from engine.api.errors import EngineDead
from minichat.cli import parser
from minichat.clients.address import PORT, Address, server_url
from minichat.clients.link import Link
from minichat.commands.serve import check


@pytest.mark.parametrize(
    ("given", "url", "shown"),
    [
        ("box", "http://box:8000", "box:8000"),
        ("box:81", "http://box:81", "box:81"),
        ("box:", "http://box:8000", "box:8000"),
        ("[::1]", "http://[::1]:8000", "[::1]:8000"),
        ("box/v1", "http://box:8000", "box:8000"),
        ("http://box", "http://box", "box:80"),
        ("https://box/llm/", "https://box/llm", "box:443/llm"),
        ("https://box:8000/v1", "https://box:8000", "box:8000"),
    ],
)
def test_a_name_alone_means_the_port_of_serve_and_every_port_is_shown(
    given: str, url: str, shown: str
) -> None:
    assert server_url(given) == url
    assert Address(url).words == shown


def test_the_port_of_serve_is_the_default() -> None:
    options = parser().parse_args(["serve"])
    check(options)
    assert options.port == PORT


def test_a_failure_names_the_port() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    link = Link(Address("http://127.0.0.1"), transport=httpx.MockTransport(refuse))
    with pytest.raises(EngineDead, match=r"^no answer from 127\.0\.0\.1:80: no connection"):
        asyncio.run(link.open())
