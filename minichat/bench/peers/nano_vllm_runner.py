"""nano-vllm, which runs Qwen3 only."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]


def opened(job: dict[str, Any]) -> tuple[str, Generate]:
    nano = import_module("nanovllm")
    llm = nano.LLM(
        job["folder"],
        max_model_len=job["context"],
        max_num_seqs=job["rows"],
        tensor_parallel_size=job["tp"],
        gpu_memory_utilization=0.45,  # the other engine is on the same GPU
    )

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        params = [nano.SamplingParams(temperature=0.6, max_tokens=count, ignore_eos=True) for count in counts]
        replies = llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
        return [len(reply["token_ids"]) for reply in replies]

    return f"nano-vllm {version('nano-vllm')}", generate
