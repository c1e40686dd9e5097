"""Products of 4-bit floats as the engine makes them on a GPU."""

import torch
from torch import Tensor


def fp4_products(parts: tuple[Tensor, ...], x: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Of one row, of all rows, and of the weights of two experts. It runs in the interpreter's process."""
    from engine.kernels.triton.experts.tiles import expert_tiles
    from engine.quant.gpu_products import Fp4Product

    with torch.inference_mode():
        product = Fp4Product(*parts, bias, x.dtype)
        few, many, plain = product(x[:1]), product(x), product.dequantized()
        experts = Fp4Product.stacked([product, Fp4Product(*parts, bias, x.dtype)])
        assert experts is not None and experts.takes(torch.float16) == (
            parts[0].shape[1] // parts[1].shape[1] == 16
        )
        ids, shares = torch.tensor([[1]], dtype=torch.int32), torch.ones(1, 1)
        own = experts.multiplied(x[:1], expert_tiles(ids, 2, rows=16), 1, pair_weights=shares)
    return few, many, plain, own[0]
