"""Bytes that a step reads, and the device's peak speeds, measured because specifications overstate them."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from engine.api.speeds import Speeds
from engine.kernels.cpu.many_rows import linear
from engine.models.base import LanguageModel
from engine.models.layers.moe import MoE
from engine.quant.base import Scheme, make_product
from engine.quant.plain import Plain

_TABLES = ("embed", "rope", "local_rope")  # a step looks up only a few rows of these
_LEAST, _MOST = 2**20, 2**28  # bytes to read in the measurement
_SECONDS = 0.1  # duration of each measurement
_RUNS, _LONGEST = 5, 1.0  # it has at least so many runs, unless they take this many seconds
_TRIES = 4  # each takes time from the steps that run beside it
_SIDES = {"cuda": 4096, "cpu": 512}  # of the matrices to multiply


class SpeedMeter:
    """Measures once for each scheme of the weights; again, a few times, if steps ran beside it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._found: dict[str, Speeds] = {}
        self._tries: dict[str, int] = {}  # that are left

    def read(
        self, model: LanguageModel, dtype: torch.dtype, scheme: Scheme | None, steps: Callable[[], int]
    ) -> Speeds:
        """`dtype`: of the activations. `scheme`: None if the weights have none that can be changed.

        `steps`: how many have begun. They use the device, too, so what is measured beside them is too low.
        """
        name = "" if scheme is None else scheme.name
        if left := self._tries.get(name, _TRIES):
            before = steps()
            found = measure(self._device, dtype, weights_read(model), scheme)
            self._found[name] = Speeds(*map(max, found, self._found.get(name, found)))
            self._tries[name] = left - 1 if steps() != before else 0
        return self._found[name]


def weights_read(model: LanguageModel) -> int:
    """Bytes of weights that a step reads, with all experts. An embedding that is also the output matrix is
    read in full.
    """
    read: dict[int, int] = {}
    for module in model.modules():
        own = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, tensor in own:
            if name not in _TABLES and not isinstance(module, nn.Embedding):
                read[id(tensor)] = tensor.nbytes
    return sum(read.values())


def experts_read(model: LanguageModel) -> tuple[int, float]:
    """Bytes of weights that belong to single experts, and the share of a layer's that a token chooses."""
    mixtures = [part for part in model.modules() if isinstance(part, MoE)]
    if not mixtures:
        return 0, 1.0
    products = [product for each in mixtures for product in (each.gate_up, each.down)]
    held = sum(tensor.nbytes for each in products for tensor in chain(each.parameters(), each.buffers()))
    return held, mixtures[0].spec.chosen / mixtures[0].spec.count


@torch.inference_mode()
def measure(device: torch.device, dtype: torch.dtype, size: int, scheme: Scheme | None = None) -> Speeds:
    """`size`: the bytes a step reads. A small model fits a CPU's caches, so their speed is measured."""
    on_gpu = device.type == "cuda"
    size, side = _MOST if on_gpu else min(max(size, _LEAST), _MOST), _SIDES[device.type]
    # A separate stream, so it does not queue behind the engine's steps.
    with torch.cuda.stream(torch.cuda.Stream(device)) if on_gpu else nullcontext():
        source = torch.ones(size // 4, device=device)
        read = source.nbytes / _best(device, source.sum)
        rows, weight = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        product = _product(scheme, weight)
        return Speeds(read, 0.0 if product is None else 2 * side**3 / _best(device, lambda: product(rows)))


def _product(scheme: Scheme | None, weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """As layers multiply. None: it is not known what a GPU can do in this scheme."""
    if scheme is not None and (weight.device.type == "cpu" or isinstance(scheme, Plain)):
        return make_product(scheme, weight, None)
    if scheme is not None and scheme.rounds_activations:
        return None  # such products are faster than those in the activations' dtype
    # The others convert weights to the activations' dtype, so that is their limit.
    # Without a scheme also on a CPU, perhaps one without instructions for bfloat16.
    return partial(linear, weight=weight)


def _best(device: torch.device, work: Callable[[], object]) -> float:
    """The shortest of many runs, in seconds, because other programs use the device too."""
    work()  # the first time may compile something
    run = _on_gpu if device.type == "cuda" else _on_cpu
    began, found = time.perf_counter(), list[float]()
    while True:
        found.append(run(work))
        passed = time.perf_counter() - began
        if passed >= (_SECONDS if len(found) >= _RUNS else _LONGEST):
            return min(found)


def _on_cpu(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _on_gpu(work: Callable[[], object]) -> float:
    """By the GPU's clock: this thread may have to wait for others before it reads its own."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3
