"""Devices to run on, and their memory."""

import logging
import re
import time
from collections.abc import Callable
from threading import Thread

import torch

from engine.api.errors import BadInput, NoRoom
from engine.kv.tiers import speeds
from engine.kv.tiers.speeds import TierSpeeds
from engine.main_memory import free_host_memory, host_memory, trim_heap
from engine.timeline import timed

log = logging.getLogger("minichat.engine")

_COLUMNS = 1024  # of the first products
_ROWS = (512, 64, 1024, 4096)  # of the first products; libraries have a kernel for each kind of shape
_COPIES = 3  # timed copies; the fastest counts

_LACKING = re.compile(r"Tried to allocate ([\d.]+ \w+)\..* of which ([\d.]+ \w+) is free")
# What CUDA, Triton and cuBLAS say where torch does not allocate: contexts, kernels, handles.
_FULL = ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def pick(name: str) -> torch.device:
    """The device with this name; `auto` chooses a CUDA GPU if there is one."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"device {name!r} is unknown; use cpu, cuda, or cuda:<index>") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise BadInput(f"device {name!r} is not available: torch {torch.__version__} finds no CUDA GPU")
        if (device.index or 0) >= (count := torch.cuda.device_count()):
            gpus = f"{count} CUDA GPU{'s' * (count != 1)}"
            raise BadInput(f"device {name!r} is not available: {gpus} found")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise BadInput(f"device {name!r} is not supported; use cpu or cuda")
    return device


def use(device: torch.device) -> None:
    """Make a GPU the current one of the calling thread: Triton launches there, whatever holds the tensors."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def begin_products(device: torch.device) -> Callable[[], None]:
    """Load the library kernels that most prompts need, on another thread. Does nothing without a GPU.

    Returns a function that waits for it. Otherwise the first prompts would load them one after another. torch
    keeps cuBLAS's handle for the next thread.
    """
    if device.type != "cuda":
        return lambda: None

    def multiply() -> None:
        try:
            with timed("cuBLAS"):
                numbers = torch.zeros(max(_ROWS), _COLUMNS, dtype=torch.bfloat16, device=device)
                for rows in _ROWS:
                    torch.nn.functional.linear(numbers[:rows], numbers)
                torch.nn.functional.embedding(torch.zeros(1, dtype=torch.long, device=device), numbers)
                torch.cuda.synchronize(device)
        except RuntimeError:
            log.exception("kernels of libraries were not loaded ahead; a step that needs one reports why")

    thread = Thread(target=multiply, name="products", daemon=True)
    thread.start()
    return thread.join


def free_memory(device: torch.device) -> int:
    """Free bytes of device memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return free_host_memory()


def memory(device: torch.device) -> int:
    """Total bytes of device memory."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host_memory()


def give_back(device: torch.device) -> None:
    """Return memory to the system that torch and the heap would keep."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim_heap()


def lacking(error: RuntimeError) -> str | None:
    """What device memory is missing, without torch's advice on its allocator; None after other errors."""
    text = str(error)
    if found := _LACKING.search(text):
        return f"the GPU has no room for {found[1]} more, with {found[2]} free"
    if isinstance(error, torch.OutOfMemoryError):
        return text.partition(". ")[0]
    return "the GPU is full" if any(each in text for each in _FULL) else None


def unfit(what: str, device: torch.device, error: RuntimeError) -> BadInput:
    """The error if memory for a part of a model cannot be allocated."""
    problem = lacking(error)
    return (BadInput if problem is None else NoRoom)(f"{what} does not fit on {device}: {problem or error}")


def lost(device: torch.device) -> str | None:
    """Report a CUDA error after which no call can succeed."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            return f"this process has lost the GPU: {error}"
    return None


def host_speeds(device: torch.device, amount: int = 0) -> TierSpeeds:
    """Copies between the device and host memory, which is pinned if the device is a GPU."""
    on_gpu, amount = device.type == "cuda", amount or speeds.AMOUNT
    host = torch.zeros(amount, dtype=torch.uint8, pin_memory=on_gpu)
    there = torch.zeros(amount, dtype=torch.uint8, device=device)

    def speed(target: torch.Tensor, source: torch.Tensor) -> float:
        seconds = []
        for _ in range(_COPIES):
            began = time.perf_counter()
            target.copy_(source)
            if on_gpu:
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
        return amount / min(seconds)

    return TierSpeeds(speed(host, there), speed(there, host))
