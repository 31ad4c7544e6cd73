"""Faults of one simulated engine, set while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

MetricsFault = Literal["ok", "frozen", "missing"]


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of an engine; with all defaults the engine is sound."""

    acceptance: float = 1.0
    """Factor on every conditional acceptance probability. 0 is a collapsed drafter with acceptance length 1."""
    step_time: float = 1.0
    """Factor on the time of every step."""
    compile_s: float = 0.0
    """Seconds by which the first pass of each shape takes longer, because kernels are compiled for it. A shape is a block size with a
    number of requests up to a power of two, or a number of prompt tokens up to one."""
    hang: bool = False
    """Nothing moves: API and health never answer. Metrics still do, with constant counters."""
    unhealthy: bool = False
    """Health endpoints answer 503."""
    error_status: int = 0
    """HTTP status that the API returns instead of a completion; 0 is none."""
    error_rate: float = 1.0
    """Share of API requests that get error_status."""
    metrics: MetricsFault = "ok"
    """``frozen``: the page stays unchanged; ``missing``: 404."""
    missing_series: tuple[str, ...] = ()
    """Metrics whose name begins with one of these prefixes are left out."""
    wrong_text: bool = False
    """The drafter changes the text, which a correct one never does."""
    tie_rate: float = 0.0
    """Share of answers in which rounding decides a near tie the other way. From there on the text differs, in this answer only."""
    startup_s: float | None = None
    """Simulated seconds from the next start to readiness; None keeps the configured time."""

    def patched(self, changes: Mapping[str, Any]) -> Faults:
        """Returns these faults with some fields changed. Raises ValueError with the field that is unknown or has the wrong type."""
        known = {field.name for field in fields(self)}
        values = dict(changes)
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"unknown fault {name!r}; known are {', '.join(sorted(known))}")
            values[name] = _checked(name, value)
        return replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


SOUND = Faults()

_KINDS: Mapping[str, tuple[type, ...]] = {
    "hang": (bool,),
    "unhealthy": (bool,),
    "wrong_text": (bool,),
    "error_status": (int,),
    "metrics": (str,),
    "missing_series": (list, tuple),
}


def _checked(name: str, value: Any) -> Any:
    if name == "startup_s" and value is None:
        return None
    kinds = _KINDS.get(name, (int, float))
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{name} must be {' or '.join(kind.__name__ for kind in kinds)}, not {value!r}")
    if name == "metrics" and value not in get_args(MetricsFault):
        raise ValueError(f"metrics must be one of {', '.join(get_args(MetricsFault))}, not {value!r}")
    if isinstance(value, int | float) and value < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return tuple(value) if isinstance(value, list) else value
