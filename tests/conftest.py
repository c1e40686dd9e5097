"""Settings for all tests: reproducible randomness, no network, one thread per process."""

import gc
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings

from tests.examples import TIMES

ROOT = Path(__file__).resolve().parents[1]
_NUMBERS = count()  # of the folders of tests
_imported = 0  # modules, when they were last excluded from garbage collection

# Set before anything imports torch: the workers of pytest-xdist share the cores, so each gets one thread.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
# Tests that start programs with another home share the compiled kernels.
os.environ.setdefault("MINICHAT_KERNELS", str(Path.home() / ".cache" / "minichat" / "kernels"))
# A key waits for the next frame, and most tests of the screen only for keys.
os.environ["TEXTUAL_FPS"] = "500"
# A folder without certificates: no test connects to another machine, and each client would load 140 of them.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

settings.register_profile(
    "suite",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=5 * TIMES,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real models, tokenizers and traces that may be next to the checkout."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared folder next to this checkout")
    return folder


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder. pytest's own fixture lists all earlier folders before it makes one."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_NUMBERS)}", numbered=False)


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None and not config.getoption("xmlpath", None):  # that file needs every report
        _send_less(config)
    if worker is not None and not sys.dont_write_bytecode:
        _compile_share(config, worker)


def _send_less(config: pytest.Config) -> None:
    """Send the main process only what it shows: of most tests two messages, not six."""
    plugins = config.pluginmanager.get_plugins()
    [worker] = (each for each in plugins if type(each).__name__ == "WorkerInteractor")  # sent as source
    send = worker.sendevent

    def send_what_is_shown(name: str, **given: Any) -> None:
        if name == "testreport":
            report = given["data"]
            quiet = report["outcome"] == "passed" and not report["sections"] and report["duration"] < 0.1
            shown = report["when"] == "call" or not quiet
        else:
            shown = name not in ("logstart", "logfinish")
        if shown:
            send(name, **given)

    worker.sendevent = send_what_is_shown


def _compile_share(config: pytest.Config, worker: dict[str, Any]) -> None:
    """Compile a share of the test files. In a fresh checkout each worker would compile all of them."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    state = config.stash[rewrite.assertstate_key]
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        folder = rewrite.get_cache_dir(file)
        compiled = folder / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, compiled) is None:
            folder.mkdir(exist_ok=True)
            stat, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, stat, compiled)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import everything without collecting garbage: there is hardly any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never look at what all tests share."""
    exclude_imported()
    gc.set_threshold(200_000, 20, 100)


def exclude_imported() -> None:
    """Exclude modules from garbage collection, also those imported later: with torch's it takes 0.1 s."""
    global _imported
    if len(sys.modules) > _imported + 50:
        _imported = len(sys.modules)
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Collect what the tests left once: pytest does it five times, and each would traverse everything."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _chats_without_syncs() -> Iterator[None]:
    """Each start of the program would wait for the disk for a tenth of a second."""
    with patch("minichat.chats.opening.LOCAL", ("WAL", "OFF")):
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    exclude_imported()
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no NVIDIA GPU")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A handler that a test leaves behind would end the process during another test."""
    left = signal.getsignal(signal.SIGINT)
    if left is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail(f"{item.nodeid} left a handler of SIGINT: {left}")
