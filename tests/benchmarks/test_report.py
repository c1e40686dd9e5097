"""How figures are formatted."""

import pytest

from minichat.bench.harness import Figure
from minichat.bench.report import row


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (
            Figure("step", "s", 0.00015, 0.00014, 0.0002, 7, 0.1, 0.2),
            ("150 µs", "140 .. 200", "2.00", "7"),
        ),
        (
            Figure("step", "s/step", 0.0123, 0.01, 0.02, 7, 0.1, 0.1),
            ("12.3 ms/step", "10 .. 20", "1.00", "7"),
        ),
        (Figure("step", "s", 0.9996, 0.99, 1.2, 3), ("1 s", "0.99 .. 1.2", "", "3")),
        (Figure("decode", "tok/s", 12345.6, 9000, 20000, 5), ("12,346 tok/s", "9,000 .. 20,000", "", "5")),
        (Figure("nothing", "s", 0, 0, 0, 1), ("0 s", "0 .. 0", "", "1")),
        (Figure("batched / alone", "x", 3.456, 3.1, 3.9, 5), ("3.46 x", "3.1 .. 3.9", "", "5")),
    ],
)
def test_a_row_is_formatted_for_reading(figure: Figure, shown: tuple[str, ...]) -> None:
    assert row(figure) == (figure.name, *shown)
