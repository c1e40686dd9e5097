"""Prints each figure as soon as it is measured, so that a run that ends early has shown what it has."""

import time
from collections.abc import Sequence

from minichat.bench.harness import Bench


class Lines:
    """Lines with the time since the start: figures, what happens, and problems, which end the run at last."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._began = bench, time.monotonic()
        self._problems = list[str]()

    def say(self, line: str) -> None:
        text = f"{time.monotonic() - self._began:4.0f} s  {line}"
        self._bench.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def note(self, name: str, samples: float | Sequence[float], unit: str) -> None:
        figure = self._bench.note(name, samples, unit)
        self.say(f"{name}: {figure.median:.4g} {unit}")

    def problem(self, text: str) -> None:
        self._problems.append(text)
        self.say(text)

    def end(self) -> None:
        """Exit with the problems, if there were any."""
        if self._problems:
            raise SystemExit("\n".join(["not all figures could be measured", *self._problems]))
