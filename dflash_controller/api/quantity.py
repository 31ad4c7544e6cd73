"""Kubernetes quantities and durations as numbers."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([-+]?[0-9]{1,2}))?$")
_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = dict(zip("numkMGTPE", (Decimal(10) ** power for power in (-9, -6, -3, 3, 6, 9, 12, 15, 18)), strict=True))
_DURATION = re.compile(r"^(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?$")


def parse_quantity(value: int | float | str) -> Decimal:
    """The number a quantity stands for: ``"1000m"`` is 1, ``"1Gi"`` is 2**30. Raises ValueError on anything else."""
    match = _QUANTITY.match(str(value).strip())
    if match is None:
        raise ValueError(f"not a quantity: {value!r}")
    number, binary, decimal, exponent = match.groups()
    scale = _BINARY[binary] if binary else _DECIMAL[decimal] if decimal else Decimal(10) ** int(exponent or 0)
    return Decimal(number) * scale


def canonical_quantity(value: int | float | str) -> str:
    """One spelling per number: ``"1000m"``, ``"1.0"`` and ``1`` all give ``"1"``. Raises ValueError on anything else."""
    return f"{parse_quantity(value).normalize():f}"


def parse_duration(value: str) -> int:
    """Seconds of ``"1h30m"``. Raises ValueError on anything else."""
    match = _DURATION.match(value)
    if not value or match is None:
        raise ValueError(f"not a duration: {value!r}")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
