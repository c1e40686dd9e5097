"""Parts that come from packages outside the tree: whether one has all that is asked of it."""


def missing_members(part: object, *asked: str) -> str | None:
    """None: it has them all; else the sentence that names what is missing."""
    missing = [name for name in asked if not hasattr(part, name)]
    return f"its class lacks {', '.join(missing)}" if missing else None
