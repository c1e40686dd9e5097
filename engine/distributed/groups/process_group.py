"""Groups of torch.distributed that belong to one engine alone: there may be others in the process."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

LOOPBACK = "127.0.0.1"


def process_group(store: Store, rank: int, ranks: int, device: torch.device, host: str, limit: float) -> Any:
    """NCCL's on GPUs; gloo's on CPUs, which the others reach under the address `host`."""
    if device.type == "cuda":
        # NCCL's watchdog would end the engine's process. The team's watches the ranks.
        os.environ |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
        os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timedelta(seconds=limit)
        return dist.ProcessGroupNCCL(store, rank, ranks, nccl)
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=limit)
    return gloo(store, rank, ranks, options)
