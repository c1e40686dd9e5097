"""The benchmark of the wire, at a toy size."""

import json
from pathlib import Path

from benchmarks.__main__ import main


def test_each_size_is_measured(tmp_path: Path) -> None:
    words = ["wire", "--blocks", "64", "128", "--warmup", "0", "--repeats", "1", "--results", str(tmp_path)]
    assert main(words) == 0
    figures = {line["figure"]: line["median"] for line in map(json.loads, (tmp_path / "wire.jsonl").open())}
    assert len(figures) == 10 and min(figures.values()) > 0
    assert figures["64 blocks, size"] < figures["128 blocks, size"]
