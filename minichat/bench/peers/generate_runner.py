"""transformers' generate: fixed batches, each as long as its longest reply."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]


def opened(job: dict[str, Any]) -> tuple[str, Generate]:
    torch, transformers = import_module("torch"), import_module("transformers")
    if job["device"] == "cpu":
        torch.set_num_threads(job["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(job["folder"], dtype="auto")
    model = model.to(job["device"]).eval()

    def batch(prompts: Sequence[Sequence[int]], longest: int) -> None:
        width = max(map(len, prompts))
        ids = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with torch.inference_mode():
            out = model.generate(
                torch.tensor(ids, device=job["device"]),
                attention_mask=torch.tensor(mask, device=job["device"]),
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=True,
                temperature=0.6,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
            )
        assert out.shape[1] == width + longest

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        for at in range(0, len(prompts), job["rows"]):
            batch(prompts[at : at + job["rows"]], max(counts[at : at + job["rows"]]))
        return list(counts)  # the replies are cut to these lengths

    return f"transformers {transformers.__version__}", generate
