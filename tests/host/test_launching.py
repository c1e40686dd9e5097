"""Processes of engines are started before there is a configuration for them."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from engine import timeline
from engine.api.config import EngineConfig
from engine.host.child import need_folder
from engine.host.launching import Ahead, LocalChild, child_environment, launch_here, launching_now
from engine.host.process import EngineProcess
from engine.start import start
from engine.text.tokenizer import Tokenizer
from minichat.clients.local import _CLOSE_WITHIN
from tests.waiting import becomes

HEAVY = {"torch", "numpy", "tokenizers", "asyncio", "fastapi"}


def test_a_process_may_start_before_its_configuration(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    launch = launching_now(log)
    config = EngineConfig(model="pocket", blocks=64)
    hosts = [EngineProcess(config, log, dry_rate=1000, launch=launch) for _ in range(2)]
    assert hosts[0].pid != hosts[1].pid, "a restart starts another process"
    for host in hosts:
        assert host.snapshot().error == ""
        host.close()


def test_threads_of_numpy_sleep_soon_unless_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    assert int(child_environment()["OPENBLAS_THREAD_TIMEOUT"]) < 26
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "30")
    assert child_environment()["OPENBLAS_THREAD_TIMEOUT"] == "30"


def test_a_process_without_a_configuration_ends_with_its_parent(tmp_path: Path) -> None:
    child, frames = launch_here(tmp_path / "engine.log")
    frames.end()
    assert child.ended(within=30) == "ended with exit code 0"
    frames.close()
    assert (tmp_path / "engine.log").read_text() == ""


def test_an_engine_that_is_ready_logs_what_its_start_did(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    host = EngineProcess(EngineConfig(model="pocket", blocks=64), log, dry_rate=1000)
    assert becomes(lambda: timeline.STARTED in log.read_text())
    (line,) = (line for line in log.read_text().splitlines() if timeline.STARTED in line)
    spans = timeline.from_text(line.partition(timeline.STARTED)[2])
    assert "garbage collection" in [each.what for each in spans]
    host.close()


def test_an_error_before_the_engine_ends_the_process(tmp_path: Path) -> None:
    child, frames = launch_here(tmp_path / "engine.log")
    frames.send({"no": "configuration"})
    assert child.ended(within=30) == "ended with exit code 1"
    frames.close()
    assert "KeyError: 'start'" in (tmp_path / "engine.log").read_text()


def test_torch_is_imported_before_there_is_a_configuration(tmp_path: Path) -> None:
    child, frames = launch_here(tmp_path / "engine.log", Ahead("cpu"))
    maps = Path(f"/proc/{child.pid}/maps")
    assert becomes(lambda: "libtorch_python" in maps.read_text())
    frames.end()
    assert child.ended(within=30) == "ended with exit code 0"
    frames.close()
    assert (tmp_path / "engine.log").read_text() == ""


def test_a_server_imports_little_before_it_starts_its_engine() -> None:
    program = f"""
import sys, minichat.cli, minichat.commands.serve, engine.host.launching, engine.server.http.binding
print(*sorted({HEAVY} & set(sys.modules)))"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "\n"


def test_an_engine_does_not_import_compilers_it_does_not_use() -> None:
    """Nor do the shapes of a model that ranks share. All of torch was imported, as on an engine's thread of
    the screen: then `arange` would load one.
    """
    program = """
import sys, torch, engine.host.child_engine, engine.start, engine.assembly
from engine.models.config_json import read_config
from engine.models.find import find_model
from engine.models.loader import whole_shapes
whole = whole_shapes(read_config(find_model("pocket", dummy=True, progress=None).folder), torch.float32)
assert {each.device.type for each in (*whole.parameters(), *whole.buffers())} == {"meta"}
print(*sorted({"torch._dynamo", "torch._inductor", "sympy", "transformers"} & set(sys.modules)))"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "\n"


def test_imported_modules_are_reported_before_the_engine_is_built() -> None:
    seen: list[bool] = []
    engine = start(
        EngineConfig(model="pocket", device="cpu", blocks=64),
        progress=lambda done, total: seen.append(False),
        imported=lambda: seen.append("torch" in sys.modules),
    )
    engine.close()
    assert seen[0] is True


def test_a_tokenizer_is_loaded_after_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would take turns with the GIL. The weights leave it to others."""
    seen: list[str] = []
    loading = Tokenizer.loading

    def noted(folder: Path) -> "Future[Tokenizer]":
        seen.append("tokenizer")
        return loading(folder)

    monkeypatch.setattr(Tokenizer, "loading", noted)
    config = EngineConfig(model="pocket", device="cpu", blocks=64)
    start(config, imported=lambda: seen.append("imports"), phase=seen.append).close()
    assert seen.index("imports") < seen.index("tokenizer") < seen.index("loading the weights")


def test_the_phases_of_a_start_are_reported(tmp_path: Path) -> None:
    seen: list[str] = []
    config = EngineConfig(model="pocket", device="cpu", blocks=64)
    start(config, phase=seen.append).close()
    phases = ["finding the model", "importing torch", "loading the weights", "allocating the cache"]
    assert seen == phases
    seen.clear()
    EngineProcess(config, tmp_path / "engine.log", phase=seen.append).close()
    assert set(seen) <= set(phases), "of phases that follow each other at once, only the last is sent"
    assert "importing torch" in seen


def test_a_process_leaves_a_current_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_folder()
    assert Path.cwd() != Path("/")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    need_folder()
    assert Path.cwd() == Path("/")


def test_a_process_that_hangs_is_killed_before_a_screen_stops_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, seconds = LocalChild.ended, list[float]()

    def noted(child: LocalChild, within: float) -> str:
        seconds.append(within)
        return ended(child, within)

    monkeypatch.setattr(LocalChild, "ended", noted)
    config = EngineConfig(model="pocket", device="cpu", blocks=64, threads=1)
    host = EngineProcess(config, tmp_path / "engine.log", dry_rate=20.0)
    os.kill(host.pid, signal.SIGSTOP)
    host.close()
    assert sum(seconds) <= _CLOSE_WITHIN / 2
    with pytest.raises(ProcessLookupError):
        os.kill(host.pid, 0)
