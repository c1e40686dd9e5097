"""What launches have in common: how kernels follow each other, and the sizes that Triton takes."""


def launch(pdl: bool, registers: int | None = None) -> dict[str, bool | int]:
    """The launch options of a kernel that may start while the one before it ends, or have so many registers.

    One that starts early waits by itself for the other's results. Options are passed only where they are
    wanted: the interpreter knows neither, and GPUs before NVIDIA's of capability 9.0 not the early start.
    """
    wanted: dict[str, bool | int] = {"launch_pdl": True} if pdl else {}
    return wanted if registers is None else wanted | {"maxnreg": registers}


def power(number: int) -> int:
    """The next power of two, itself included."""
    return 1 << (number - 1).bit_length()
