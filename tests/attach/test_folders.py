"""Folders that the user of a background engine names are those of the user's terminal."""

from pathlib import Path
from typing import Any

import pytest

from engine.api.commands import LoadAdapter
from minichat.clients.address import Address
from minichat.clients.protocol import Progress
from minichat.clients.remote import Home, RemoteBackend
from tests.app.conftest import run


class Started(Home):
    """A background engine that runs."""

    async def ensure(self, progress: Progress) -> None: ...

    def gone(self, *, told: bool) -> str:
        return ""


@pytest.mark.parametrize(("home", "absolute"), [(Started(), True), (None, False)])
@run
async def test_an_adapter_of_a_background_engine_is_in_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Home | None, absolute: bool
) -> None:
    (tmp_path / "sql").mkdir()
    monkeypatch.chdir(tmp_path)
    backend, sent = RemoteBackend(Address("http://localhost"), home), []

    async def send(path: str, fields: Any) -> dict[str, Any]:
        sent.append(fields["path"])
        return {"v": 1, "result": None}

    monkeypatch.setattr(backend, "_send_in_order", send)
    for path in ("sql", "someone/sql"):
        await backend.send(LoadAdapter("a", path))
    assert sent == [str(tmp_path / "sql") if absolute else "sql", "someone/sql"]
