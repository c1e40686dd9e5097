"""Reads traces of requests: files of lines, `.csv` or `.jsonl`, also compressed as `.xz`."""

import json
import lzma
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

SCALE = 16  # Mooncake's contexts reach 128k tokens; a sixteenth of most fits the built-in model
_BLOCK = 512  # tokens that one hash of the trace stands for
_HASH = 2654435761  # spreads the numbers of conversations evenly


@contextmanager
def opened(file: Path) -> Iterator[TextIO]:
    with lzma.open(file, "rt") if file.suffix == ".xz" else file.open() as lines:
        yield lines


def mooncake_prompts(file: Path, share: int, longest: int, scale: int = SCALE) -> list[list[int]]:
    """Prompts of one in `share` conversations of a Mooncake trace, with up to `longest` tokens each.

    All of a conversation's requests are kept, so that prefixes repeat as in the whole trace. Lengths are
    divided by `scale`; each of the trace's hashes becomes random tokens, the same wherever it occurs.
    """
    found = []
    with opened(file) as lines:
        for record in map(json.loads, lines):
            hashes, tokens = record["hash_ids"], record["input_length"] // scale
            conversation = hashes[min(1, len(hashes) - 1)]  # the first block is the same in most
            if conversation * _HASH % 2**32 % share == 0 and 0 < tokens <= longest:
                found.append([token for each in hashes for token in _tokens(each, _BLOCK // scale)][:tokens])
    return found


def _tokens(number: int, count: int) -> list[int]:
    draw = random.Random(number)
    return [draw.randrange(10, 3000) for _ in range(count)]
