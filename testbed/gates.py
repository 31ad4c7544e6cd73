"""``spec.rollout.analysis`` for demos and tests."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.gates import GATE_SPECS


def each_gate(**fields: Any) -> dict[str, dict[str, Any]]:
    """Returns the gates of all metrics, with these fields (as on the wire) in every gate that has them."""
    return {name: {field: value for field, value in fields.items() if field in spec.fields} for name, spec in GATE_SPECS.items()}
