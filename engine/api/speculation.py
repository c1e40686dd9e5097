"""What drafts have gained."""

from typing import NamedTuple


class Speculation(NamedTuple):
    """The gains of speculative decoding so far, for a request or the engine."""

    kind: str = ""
    on: bool = True  # False: paused, because it did not pay
    verifications: int = 0
    drafted: int = 0  # tokens
    accepted: int = 0  # accepted draft tokens
    gain: float = 0.0  # speedup over plain decoding; 0: not known yet
    plain: int = 0  # tokens decoded without drafts meanwhile, as while drafting is paused

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_a_step(self) -> float:
        """Mean tokens that a request got from a step, with or without drafts."""
        return 1 + self.accepted / max(self.verifications + self.plain, 1)
