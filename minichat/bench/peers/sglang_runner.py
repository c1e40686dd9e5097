"""SGLang's offline engine, on its default path."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]


def opened(job: dict[str, Any]) -> tuple[str, Generate]:
    sglang = import_module("sglang")
    engine = sglang.Engine(
        model_path=job["folder"],
        skip_tokenizer_init=True,
        context_length=job["context"],
        max_running_requests=job["rows"],
        tp_size=job["tp"],
        mem_fraction_static=0.45,  # the other engine is on the same GPU
        random_seed=0,
        log_level="error",
    )

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        params = [{"temperature": 0.6, "max_new_tokens": count, "ignore_eos": True} for count in counts]
        replies = engine.generate(input_ids=[list(prompt) for prompt in prompts], sampling_params=params)
        return [reply["meta_info"]["completion_tokens"] for reply in replies]

    return f"SGLang {sglang.__version__}", generate
