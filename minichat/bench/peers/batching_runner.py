"""transformers' continuous batching, with flash-attn on a GPU if it is installed."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import finalize

_PAGE = 256  # tokens of a block, by default; releases have different names for that option

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]


def opened(job: dict[str, Any]) -> tuple[str, Generate]:
    torch, transformers = import_module("torch"), import_module("transformers")
    if cpu := job["device"] == "cpu":
        torch.set_num_threads(job["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(job["folder"], dtype="auto")
    model = model.to(job["device"]).eval()
    fast = not cpu and find_spec("flash_attn") is not None
    model.set_attn_implementation("flash_attention_2" if fast else "sdpa")
    how = transformers.GenerationConfig(
        do_sample=True, temperature=0.6, top_k=0, eos_token_id=-1, max_new_tokens=job["context"]
    )
    room: dict[str, Any] = {"max_memory_percent": 0.45}  # the other engine is on the same GPU
    if cpu:  # it would size its cache by a GPU's memory
        room = {"num_blocks": job["rows"] * -(-job["context"] // _PAGE), "max_batch_tokens": 512}
    batching = transformers.ContinuousBatchingConfig(**room)
    manager = model.init_continuous_batching(generation_config=how, continuous_batching_config=batching)
    if not cpu:
        manager.warmup()  # captures its graphs
    manager.start()

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        order = [
            manager.add_request(list(prompt), max_new_tokens=count)
            for prompt, count in zip(prompts, counts, strict=True)
        ]
        lengths: dict[str, int] = {}
        while len(lengths) < len(order):
            one = manager.get_result(timeout=120)
            if one is None or one.error:
                raise RuntimeError("it gave no reply" if one is None else one.error)
            if one.is_finished():
                lengths[one.request_id] = len(one.generated_tokens)
        return [lengths[id] for id in order]

    finalize(generate, manager.stop)  # its thread would keep the process
    without = "" if cpu or fast else " without flash-attn"  # which is many times as slow on a GPU
    return f"transformers {transformers.__version__}{without}", generate
