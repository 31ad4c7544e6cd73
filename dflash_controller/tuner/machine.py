"""What prior knowledge depends on: the engine and the kind of target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """An engine with a kind of target. A target can be a hybrid and a mixture of experts at once."""

    engine: str = ""
    """``sglang`` or ``vllm``; empty: unknown."""
    hybrid: bool = False
    """The target mixes attention with recurrent layers."""
    mixture: bool = False
    """The target is a mixture of experts."""

    @property
    def kind(self) -> str:
        """The kind of target: dense, mixture, hybrid or hybrid mixture."""
        return " ".join(word for word, has in (("hybrid", self.hybrid), ("mixture", self.mixture)) if has) or "dense"


UNKNOWN = Machine()
"""An engine of which nothing is known, with a dense target."""
