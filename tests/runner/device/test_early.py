"""What a start on a GPU does while torch is imported. The driver is a fake."""

import ctypes
import importlib
import inspect
import pkgutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine import early
from engine.api.config import EngineConfig, ModelPlace
from engine.devices import begin_products
from tests.waiting import LIMIT, becomes


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hash of an earlier start."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


class Driver:
    """Counts the calls of CUDA's driver."""

    def __init__(self, problem: str = "") -> None:
        self.calls: list[str] = []
        self.index, self.problem = -1, problem

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> int:
            self.calls.append(name)
            if name == "cuDeviceGet":
                self.index = given[1]
            return int(name == self.problem)

        return call


ALL = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]


def prepared(monkeypatch: pytest.MonkeyPatch, device: str, driver: Driver | None) -> list[float]:
    """The turns of threads while Triton's files were hashed, if they were."""
    cache, turns = pytest.importorskip("triton.runtime.cache", reason="no Triton here"), list[float]()

    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(early, "_prepared", {})  # each process does it once
    monkeypatch.setattr(cache, "triton_key", lambda: turns.append(sys.getswitchinterval()))
    early.prepare_gpu(device)
    assert becomes(lambda: all(each.name != "early" for each in threading.enumerate()))
    return turns


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:3", 3), ("cuda:none", 0)])
def test_the_context_is_made_and_tritons_files_are_hashed(
    monkeypatch: pytest.MonkeyPatch, device: str, index: int
) -> None:
    driver, usual = Driver(), sys.getswitchinterval()
    (turn,) = prepared(monkeypatch, device, driver)
    assert (driver.calls, driver.index) == (ALL, index)
    assert turn < 0.001
    assert sys.getswitchinterval() == usual


def test_kernels_wait_for_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads would compute it twice."""
    cache = pytest.importorskip("triton.runtime.cache", reason="no Triton here")
    from engine.kernels.triton import precompile

    begun, released, order = threading.Event(), threading.Event(), list[str]()

    def hashed() -> None:
        begun.set()
        released.wait(LIMIT)
        order.append("hashed")

    def compile() -> None:
        with suppress(RuntimeError):  # no GPU
            precompile.start_compiling(lambda: None)
        order.append("compiled")

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setattr(early, "_prepared", {})
    monkeypatch.setattr(cache, "triton_key", hashed)
    early.prepare_gpu("cuda")
    assert begun.wait(LIMIT)
    compiling = threading.Thread(target=compile, daemon=True)
    compiling.start()
    released.set()
    compiling.join(LIMIT)
    assert order == ["hashed", "compiled"]


@pytest.mark.parametrize("problem", ALL)
def test_a_gpu_that_does_not_answer_is_left_to_torch(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    driver = Driver(problem)
    assert prepared(monkeypatch, "cuda", driver) == []
    assert driver.calls == ALL[: ALL.index(problem) + 1]


def test_host_memory_is_pinned_once_there_is_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="no Triton here")
    driver, asked = Driver(), list[tuple[list[str], int]]()

    def begin(cuda: Driver, context: ctypes.c_void_p, nbytes: int) -> None:
        asked.append((cuda.calls[: len(ALL)], nbytes))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(early, "_prepared", {})
    monkeypatch.setattr(early.pinned_ahead, "begin", begin)
    early.prepare_gpu("cuda", 2**30)
    early.wait_for_hash()
    assert asked == [(ALL, 2**30)]


def test_the_sources_of_kernels_are_those_that_inspect_finds() -> None:
    """Their hashes name the compiled kernels."""
    jit = pytest.importorskip("triton.runtime.jit", reason="no Triton here")
    import engine.kernels.triton as kernels

    names = [each.name for each in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}.")]
    found = [each for name in names for each in vars(importlib.import_module(name)).values()]
    functions = [each.fn for each in found if isinstance(each, jit.JITFunction)]
    usual = [inspect.getsourcelines(each) for each in functions]
    assert len(usual) > 100
    with early.quick_sources():
        assert [inspect.getsourcelines(each) for each in functions] == usual
    assert all(early._lines_of(each) for each in functions)


def test_without_a_gpu_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    assert prepared(monkeypatch, "cpu", driver) == prepared(monkeypatch, "auto", None) == []
    assert driver.calls == []


def test_a_process_does_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    assert len(prepared(monkeypatch, "cuda:1", driver)) == 1
    early.prepare_gpu("cuda:1")()
    assert driver.calls == ALL


def test_turns_are_short_until_the_last_thread_has_left() -> None:
    usual, one, other = sys.getswitchinterval(), early.short_turns(), early.short_turns()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert sys.getswitchinterval() < usual
    other.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual


@pytest.mark.parametrize("problem", [ImportError("no triton"), RuntimeError("0 active drivers")])
def test_an_engine_starts_without_triton(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    """Other backends do without it."""
    precompile = pytest.importorskip("engine.kernels.triton.precompile", reason="no Triton here")
    from engine import assembly

    def fails(*given: object, alone: bool) -> None:
        raise problem

    def loads(*given: object) -> None:
        raise FileNotFoundError("the model is loaded")

    monkeypatch.setattr(precompile, "load_ahead", fails)
    monkeypatch.setattr(assembly, "begin_products", lambda device: lambda: None)
    for name, found in {"pick": torch.device("cuda"), "use": None, "_device_name": "a GPU"}.items():
        monkeypatch.setattr(assembly, name, lambda *given, found=found: found)
    monkeypatch.setattr(assembly, "_load", loads)
    with pytest.raises(FileNotFoundError):
        assembly.load_share(EngineConfig(model="m"), ModelPlace("m", Path()))


def test_each_rank_notes_its_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is a constant in those that exchange. In one file, they would replace each other's."""
    precompile = pytest.importorskip("engine.kernels.triton.precompile", reason="no Triton here")
    from engine import assembly

    noted = list[object]()

    def loads(*given: object) -> None:
        raise FileNotFoundError("the model is loaded")

    monkeypatch.setattr(precompile, "load_ahead", lambda *configuration, alone: noted.append(configuration))
    monkeypatch.setattr(assembly, "begin_products", lambda device: lambda: None)
    for name, found in {"pick": torch.device("cuda"), "use": None, "_device_name": "a GPU"}.items():
        monkeypatch.setattr(assembly, name, lambda *given, found=found: found)
    monkeypatch.setattr(assembly, "_load", loads)
    for rank in range(2):
        ranked: Any = SimpleNamespace(rank=rank, ranks=2)
        with pytest.raises(FileNotFoundError):
            assembly.load_share(EngineConfig(model="m", tp=2), ModelPlace("m", Path()), ranked)
    assert noted[0] != noted[1]


def test_without_a_gpu_no_product_is_computed_ahead() -> None:
    before = threading.active_count()
    begin_products(torch.device("cpu"))()
    assert threading.active_count() == before


@pytest.mark.cuda
def test_products_work_after_the_first_one_on_another_thread() -> None:
    gpu = torch.device("cuda", 0)
    begin_products(gpu)()
    ones = torch.ones(64, 64, dtype=torch.bfloat16, device=gpu)
    assert torch.mm(ones, ones).unique().tolist() == [64]
