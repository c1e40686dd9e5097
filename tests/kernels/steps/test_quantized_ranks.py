"""Fused steps of two ranks with quantized weights, in Triton's interpreter, against plain torch."""

import pytest
import torch
from torch import Tensor

from tests.cases import soak
from tests.kernels.interpreted import Interpreted
from tests.kernels.ranked import logits_of_ranks

pytest.importorskip("triton", reason="no Triton here")

DECODES = [(1, 20), (1, 1), (1, 17)]


@pytest.mark.parametrize(
    ("scheme", "rows"),
    [
        *soak(("int8", DECODES)),
        ("fp8", DECODES),
        ("int4", DECODES[:1]),
        *soak(("int8", DECODES[:1]), ("fp8", DECODES[:1]), ("int4", DECODES)),
        *soak(*((scheme, [*DECODES, (19, 30)]) for scheme in ("int8", "fp8", "int4"))),
    ],
    ids=str,
)
def test_logits_of_ranks(kernels: Interpreted, scheme: str, rows: list[tuple[int, int]]) -> None:
    """Each rank has its part of the numbers, and both get the same logits.

    The inputs of `down` are split, so its product has several parts. In fp8 a number may round the other way,
    which moves rows by less than rounding itself.
    """
    (found, expected, exact), *others = kernels.run(logits_of_ranks, scheme, rows)
    for each in others:
        assert all(map(torch.equal, each, (found, expected, exact)))
    error = distance(found, expected)
    if scheme == "fp8":
        assert error.mean() < distance(exact, expected).mean() / 2, error
    else:
        assert error.max() < 5e-3, error


def distance(one: Tensor, other: Tensor) -> Tensor:
    """The distance of each row from the other's, relative to the other's norm."""
    return (one.float() - other.float()).norm(dim=1) / other.float().norm(dim=1)
