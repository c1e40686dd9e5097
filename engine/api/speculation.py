"""What drafts have gained."""

from collections.abc import Iterable
from typing import NamedTuple, Self


class Speculation(NamedTuple):
    """The gains of speculative decoding so far, for a request or the engine."""

    kind: str = ""
    on: bool = True  # False: paused, because it did not pay
    verifications: int = 0
    drafted: int = 0  # tokens
    accepted: int = 0  # accepted draft tokens
    gain: float = 0.0  # speedup over plain decoding; 0: not known yet
    plain: int = 0  # tokens decoded without drafts meanwhile, as while drafting is paused

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum. Its kind is that of the part with the most drafts."""
        parts = [*parts]
        known = [(each.verifications + each.accepted + each.plain, each.gain) for each in parts if each.gain]
        took = sum(tokens / gain for tokens, gain in known)
        return max(parts, key=lambda each: each.drafted)._replace(
            verifications=sum(each.verifications for each in parts),
            drafted=sum(each.drafted for each in parts),
            accepted=sum(each.accepted for each in parts),
            gain=sum(tokens for tokens, _ in known) / took if took else 0.0,
            plain=sum(each.plain for each in parts),
        )

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_a_step(self) -> float:
        """Mean tokens that a request got from a step, with or without drafts."""
        return 1 + self.accepted / max(self.verifications + self.plain, 1)
