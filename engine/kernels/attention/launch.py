"""How kernels follow each other."""


def launch(early: bool) -> dict[str, bool]:
    """The launch options of a kernel that may start while the one before it ends.

    Such a kernel waits by itself for the other's results. The option is passed only where it is wanted: other
    GPUs than NVIDIA's of capability 9.0 and up, and the interpreter, do not know it.
    """
    return {"launch_pdl": True} if early else {}
