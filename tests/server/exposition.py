"""A strict reader of Prometheus' text format."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_LABEL = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][\w:]*)\{{({_LABEL}(?:,{_LABEL})*)?\}} (\S+)")

Labels = frozenset[tuple[str, str]]


@dataclass
class MetricFamily:
    name: str
    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)  # by name and labels

    def value(self, suffix: str = "", **labels: str) -> float:
        """The value of the one sample with these labels, and perhaps others."""
        [value] = [
            value
            for (name, found), value in self.samples.items()
            if name == self.name + suffix and labels.items() <= dict(found).items()
        ]
        return value

    def check(self) -> None:
        """Check the rules for the kind of the family."""
        assert self.samples
        names = {name for name, _ in self.samples}
        if self.kind == "histogram":
            assert names == {f"{self.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")}
            buckets = [
                (float(dict(labels)["le"]), value)
                for (name, labels), value in self.samples.items()
                if name.endswith("_bucket")
            ]
            assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(buckets))
            assert buckets[-1] == (float("inf"), self.value("_count"))
        else:
            assert names == {self.name}
        if self.kind == "counter":
            assert self.name.endswith("_total")
            assert all(value >= 0 and value == int(value) for value in self.samples.values())


def families(page: str) -> dict[str, MetricFamily]:
    """Parse a page, check it, and return its families by name."""
    assert page.endswith("\n")
    found: dict[str, MetricFamily] = {}
    for family in _families(iter(page.splitlines())):
        assert family.name not in found
        family.check()
        found[family.name] = family
    return found


def _families(lines: Iterator[str]) -> Iterator[MetricFamily]:
    family = None
    for line in lines:
        if line.startswith("#"):
            if family:
                yield family
            name, _, about = line.removeprefix("# HELP ").partition(" ")
            head = re.fullmatch(rf"# TYPE {re.escape(name)} (gauge|counter|histogram)", next(lines))
            assert head and about, line
            family = MetricFamily(name, head[1])
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample and family, line
        labels = frozenset(tuple(each.split("=", 1)) for each in re.findall(_LABEL, sample[2] or ""))
        key = sample[1], frozenset((label, text[1:-1]) for label, text in labels)
        assert key not in family.samples
        family.samples[key] = float(sample[3])
    if family:
        yield family
