"""What a test asks the tuner: two measured replicas that run block 16, in mode Auto."""

from __future__ import annotations

from typing import Any

from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.speculation import Fixed
from dflash_controller.tuner.decision import TunerInputs

NOW_S = 1_800_000_000.0
AUTO = TuningPolicy("Auto", (8, 16), "Restart", 5.0, 300, 1800, 4, False)


def tuner_inputs(**more: Any) -> TunerInputs:
    """The deployment above, with fields replaced or added."""
    values: dict[str, Any] = {
        "now_s": NOW_S,
        "policy": AUTO,
        "speculation": Fixed(16),
        "trained_block": 16,
        "mixture": False,
        "replicas": 2,
        "serving": 2,
        "measured": 2,
        "surge": False,
        "restart_s": 60.0,
    }
    return TunerInputs(**{**values, **more})
