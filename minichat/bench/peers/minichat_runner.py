"""This engine, on its default path."""

from collections.abc import Callable, Sequence
from typing import Any

from engine.api.config import EngineConfig
from engine.start import start
from minichat import __version__
from minichat.bench.traffic import seconds, submit

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], list[int]]


def opened(job: dict[str, Any]) -> tuple[str, Generate]:
    cpu = job["device"] == "cpu"
    engine = start(
        EngineConfig(
            model=job["folder"],
            quantization=job["quantization"],
            device=job["device"],
            tp=job["tp"],
            threads=job["threads"] if cpu else None,
            blocks=job["rows"] * -(-job["context"] // 16),
            host_blocks=0,
            max_context=job["context"],
            seed=0,
        )
    )

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
        pairs = zip(prompts, counts, strict=True)
        readers = [submit(engine, prompt, count, temperature=0.6) for prompt, count in pairs]
        seconds(engine, readers)
        return [len(reader.tokens) for reader in readers]

    return __version__, generate
