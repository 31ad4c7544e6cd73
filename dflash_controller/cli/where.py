"""What the options of a command say about the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """None where the options say nothing."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    timeout_s: float = 30.0
    """Time limit of a request, in seconds."""
