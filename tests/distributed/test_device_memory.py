"""Memory of a GPU that another process opens, and that outlives the process it belongs to."""

import gc
import subprocess
import sys

import pytest
import torch

from engine.distributed.device_memory import Counters, opened_bytes
from tests.waiting import becomes

pytestmark = pytest.mark.cuda
NBYTES = 2**30
OWNER = """
import sys, torch
from engine.distributed.device_memory import DeviceMemory
device = torch.device("cuda", 0)
memory = DeviceMemory(int(sys.argv[1]), device)
memory.words.copy_(torch.arange(len(memory.words), device=device))
torch.cuda.synchronize(device)
print(memory.handle().hex(), flush=True)
sys.stdin.read()
"""
NEXT = """
import sys, torch
memory = [torch.full((int(sys.argv[1]),), 255, dtype=torch.uint8, device="cuda:0") for _ in range(4)]
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("reader", [0, 1])
def test_memory_of_a_killed_process_stays_until_it_is_given_back(reader: int) -> None:
    if torch.cuda.device_count() <= reader:
        pytest.skip("needs two GPUs")
    device = torch.device("cuda", reader)
    expected = torch.arange(NBYTES // 8, device=device)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(NBYTES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        memory = opened_bytes(bytes.fromhex(owner.stdout.readline()), NBYTES, device)
        assert memory.device == device
        try:
            assert torch.equal(memory.view(torch.int64), expected)
        finally:
            owner.kill()
    subprocess.run([sys.executable, "-c", NEXT, str(NBYTES)], check=True)
    assert torch.equal(memory.view(torch.int64), expected), "it is as it was, though another has taken memory"
    part = memory[NBYTES // 2 :].view(torch.int64)
    del memory
    gc.collect()
    assert torch.equal(part, expected[NBYTES // 16 :]), "a part of it keeps it"
    before = torch.cuda.mem_get_info(0)[0]
    del part
    gc.collect()
    assert becomes(lambda: torch.cuda.mem_get_info(0)[0] >= before + NBYTES // 2), "it is free again"


def test_counters_are_read_while_kernels_add_to_them() -> None:
    counted = torch.zeros(2, dtype=torch.int64, device="cuda")
    counters = Counters(counted)
    assert counters.values() == [0, 0]
    for _ in range(3):
        counted += torch.tensor([1, 10], device="cuda")
    assert becomes(lambda: counters.values() == [3, 30])
