"""Shared launch helpers: launch options, and sizes that Triton accepts."""


def launch(pdl: bool, registers: int | None = None) -> dict[str, bool | int]:
    """Return the launch options for programmatic dependent launch (PDL) and a limit of registers per thread.

    A PDL kernel waits for the previous kernel's results itself. Options are passed only if used: the
    interpreter supports neither, and GPUs before compute capability 9.0 do not support PDL.
    """
    options: dict[str, bool | int] = {"launch_pdl": True} if pdl else {}
    return options if registers is None else options | {"maxnreg": registers}


def power(number: int) -> int:
    """Return the next power of two, at least `number`."""
    return 1 << (number - 1).bit_length()
