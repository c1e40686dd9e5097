"""A server that does not answer yet: attach prints that it is waiting."""

import asyncio

import pytest

from engine.api.errors import EngineDead
from minichat.clients.address import Address
from minichat.commands import attach


def test_attach_prints_that_it_is_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attach, "_PATIENCE", 0.01)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while not (said := capsys.readouterr().err):
            await asyncio.sleep(0.01)
        assert said.startswith("minichat: waiting for an answer from 127.0.0.1:")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EngineDead, match="no answer from"):
            await attach._check_server(Address(f"http://127.0.0.1:{port}"))
        server.close()

    asyncio.run(main())


def test_nothing_is_said_about_a_server_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineDead):
        asyncio.run(attach._check_server(Address("http://127.0.0.1:1")))
    assert capsys.readouterr().err == ""
