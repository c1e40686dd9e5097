"""vLLM's offline engine, on its default path."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]


def opened(job: dict[str, Any]) -> tuple[str, Generate]:
    vllm = import_module("vllm")
    llm = vllm.LLM(
        model=job["folder"],
        skip_tokenizer_init=True,
        max_model_len=job["context"],
        max_num_seqs=max(job["rows"], 1),
        tensor_parallel_size=job["tp"],
        gpu_memory_utilization=0.45,  # the other engine is on the same GPU
        seed=0,
    )

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        params = [
            vllm.SamplingParams(temperature=0.6, max_tokens=count, ignore_eos=True, detokenize=False)
            for count in counts
        ]
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        replies = llm.generate(asked, params, use_tqdm=False)
        return [len(reply.outputs[0].token_ids) for reply in replies]

    return f"vLLM {vllm.__version__}", generate
