"""How many compiled products a process on a CPU keeps."""

import subprocess
import sys

import pytest
import torch

from engine.kernels.cpu.packed import why_not

_PRODUCTS = """
import ctypes
import torch
from engine.kernels.cpu.packed import PackedLinear

def resident():
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps tens of megabytes that are free, more on some runs
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

torch.set_num_threads(1)
product = PackedLinear(torch.ones(64, 64, dtype=torch.bfloat16), None)
for inputs in range(16, 6416, 8):
    weight = torch.ones(64, inputs, dtype=torch.bfloat16)
    PackedLinear(weight, None)(torch.ones(8, inputs, dtype=torch.bfloat16))
    if inputs == 3216:
        before = resident()
print(resident() - before)
"""


@pytest.mark.soak
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_sizes_of_products() -> None:
    if reason := why_not(torch.ones(1, 1, dtype=torch.bfloat16)):
        pytest.skip(reason)
    ran = subprocess.run([sys.executable, "-c", _PRODUCTS], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 25
