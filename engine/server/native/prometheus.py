"""A page of metrics in Prometheus' text format."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Literal

from engine.api.histogram import Counts

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Collects families. All names have the prefix, and all samples the labels given here."""

    def __init__(self, prefix: str, **labels: str) -> None:
        self._prefix, self._labels = prefix, labels
        self._lines: list[str] = []

    def gauge(self, name: str, about: str, value: float, **labels: str) -> None:
        self._sample(self._head("gauge", name, about), value, labels)

    def counter(self, name: str, about: str, value: float) -> None:
        self._sample(self._head("counter", name, about), value, {})

    def split(
        self,
        kind: Literal["gauge", "counter"],
        name: str,
        about: str,
        label: str,
        values: Mapping[str, float],
    ) -> None:
        """Add a family with one sample for each value of a label."""
        name = self._head(kind, name, about)
        for each, value in values.items():
            self._sample(name, value, {label: each})

    def histogram(self, name: str, about: str, counts: Counts) -> None:
        name = self._head("histogram", name, about)
        *below, count = accumulate(counts.counts)
        for bound, value in zip(counts.bounds, below, strict=True):
            self._sample(f"{name}_bucket", value, {"le": repr(float(bound))})  # boards ask for le="1.0"
        self._sample(f"{name}_bucket", count, {"le": "+Inf"})
        self._sample(f"{name}_sum", counts.total, {})
        self._sample(f"{name}_count", count, {})

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _head(self, kind: str, name: str, about: str) -> str:
        name = f"{self._prefix}:{name}"
        self._lines += (f"# HELP {name} {about}", f"# TYPE {name} {kind}")
        return name

    def _sample(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in {**self._labels, **labels}.items())
        self._lines.append(f"{name}{{{pairs}}} {value}")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
