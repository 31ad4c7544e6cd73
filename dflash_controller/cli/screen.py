"""What ``status`` shows of a DFlashDeployment: pure, from the objects as the API server returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dflash_controller.api.gates import GATE_SPECS
from dflash_controller.api.inputs import canonical, revision_inputs
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.cli.deployments import happened
from dflash_controller.cli.field_changes import changes
from dflash_controller.planning.revisions.revision import Revision

BAR = 20
"""Cells of a bar."""
EVENTS = 6
FIELDS = 4
"""Fields of the spec that are shown where it differs from what runs."""
_PROBE = "probe"
_UNFINISHED = frozenset({"Preparing", "Canary", "Analyzing", "Progressing", "Paused", "Held", "RollingBack", "Suspended"})


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """One metric of the analysis. ``used`` is the part of the allowed loss that is used up; None if it cannot be said."""

    metric: str
    verdict: str
    used: float | None
    text: str
    judged: bool

    @property
    def bar(self) -> str:
        """The allowed loss as a bar; full where it is used up."""
        if self.used is None:
            return " " * BAR
        filled = round(min(1.0, max(0.0, self.used)) * BAR)
        return "█" * filled + "░" * (BAR - filled)


def headline(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the state in a few words, and the message of what matters most."""
    for kind, wrong in (("Stalled", "True"), ("Ready", "False"), ("Available", "False")):
        found = condition(obj, kind)
        if found.get("status") == wrong:
            return f"{kind}={wrong} {found.get('reason', '')}", str(found.get("message", ""))
    ready = condition(obj, "Ready")
    if not ready:
        return "not seen by an operator yet", "Is the operator running, and does it serve this namespace?"
    return f"Ready={ready.get('status')} {ready.get('reason', '')}", str(ready.get("message", ""))


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Returns a condition; empty if there is none of that type."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item.get("type") == kind), {})


def facts(obj: Mapping[str, Any], now: datetime, stable: Revision | None = None) -> list[tuple[str, str]]:
    """Returns name and value of what the deployment runs and measures. ``stable`` is its active revision; None if it is not known."""
    status = obj.get("status") or {}
    metrics, speculation, tuning = status.get("metrics") or {}, status.get("speculation") or {}, status.get("tuning") or {}
    drafter = status.get("drafter", "")
    revision = f"{status.get('stableRevision', 'none yet')}"
    found = [
        ("target", stable.resolved.target.model if stable else ""),
        ("drafter", f"{drafter} at {status['drafterRevision']}" if status.get("drafterRevision") else str(drafter)),
        ("replicas", f"{status.get('serving', '0')} serving"),
        ("revision", f"{revision} ({status['engine']})" if status.get("engine") else revision),
        ("block size", _speculation(speculation)),
        ("asked for", _asked_for(obj, stable)),
    ]
    known = len(found)
    measured = _ago(metrics.get("measuredAt"), now)
    for name, key, unit in (
        ("acceptance", "acceptanceLength", "tokens per verify step"),
        ("speed", "tokensPerSecond", "tokens/s, all replicas"),
        ("step time", "stepTimeMilliseconds", "ms per verify step"),
        ("concurrency", "concurrency", "requests in service per replica"),
    ):
        if metrics.get(key) is not None:
            found.append((name, f"{_number(metrics[key])} {unit}"))
    if measured and len(found) > known:
        found.append(("measured", measured))
    if tuning:
        state = ", ".join(dict.fromkeys(str(tuning.get(key)) for key in ("state", "reason")))
        found.append(("tuner", f"{state}: {tuning.get('message', '')}"))
    return [(name, value) for name, value in found if value]


def rollout(obj: Mapping[str, Any], now: datetime) -> str:
    """Returns the rollout in a sentence; empty if there was none."""
    found = (obj.get("status") or {}).get("rollout") or {}
    if not found:
        return ""
    phase = found.get("phase", "")
    when = found.get("startedAt") if phase in _UNFINISHED else found.get("finishedAt") or found.get("startedAt")
    reason = f" ({found['reason']})" if found.get("reason") not in (None, "", phase) else ""
    message = f": {found['message']}" if found.get("message") else ""
    return f"{phase}{reason} {found.get('revision', '')}, {_ago(when, now) or 'now'}{message}"


def went_wrong(obj: Mapping[str, Any]) -> bool:
    """Returns whether the last rollout did not end as asked. A superseded one did where what the spec asks for instead is Ready."""
    phase = ((obj.get("status") or {}).get("rollout") or {}).get("phase")
    return phase in ("Held", "RolledBack") or (phase == "Superseded" and condition(obj, "Ready").get("status") != "True")


def verdicts(obj: Mapping[str, Any]) -> list[VerdictLine]:
    """Returns the verdicts of the rollout, in the order in which the operator lists them."""
    found = ((obj.get("status") or {}).get("rollout") or {}).get("analysis") or ()
    return [_verdict(item) for item in found]


def notices(obj: Mapping[str, Any]) -> list[str]:
    """Returns what is worth knowing and not wrong."""
    return [f"{item.get('reason')}: {item.get('message')}" for item in (obj.get("status") or {}).get("notices") or ()]


def decisions(events: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yields age, reason and message of the last events, the newest first."""
    for event in list(reversed(events))[:EVENTS]:
        yield _ago(happened(event), now), str(event.get("reason", "")), str(event.get("message", ""))


def row(obj: Mapping[str, Any]) -> list[str]:
    """Returns the cells of one deployment in the list of all."""
    status = obj.get("status") or {}
    metrics, phase = status.get("metrics") or {}, (status.get("rollout") or {}).get("phase", "")
    return [
        obj["metadata"]["name"],
        str(condition(obj, "Ready").get("status", "Unknown")),
        str(status.get("serving", "")),
        str((status.get("speculation") or {}).get("label", "")),
        _number(metrics.get("acceptanceLength")),
        _number(metrics.get("tokensPerSecond")),
        phase,
        str(condition(obj, "Ready").get("reason", "")),
    ]


def _verdict(item: Mapping[str, Any]) -> VerdictLine:
    name = str(item.get("metric", ""))
    bare = name.removeprefix(_PROBE)
    gate = GATE_SPECS.get(f"{bare[:1].lower()}{bare[1:]}")
    used = _used(item, gate.limit_unit) if gate else None
    return VerdictLine(name, str(item.get("verdict", "")), used, str(item.get("message", "")), item.get("gates") is not False)


def _used(item: Mapping[str, Any], unit: str) -> float | None:
    """Returns the loss as a part of the limit: 0 for none, 1 where the limit is reached."""
    candidate, stable, limit = item.get("candidate"), item.get("stable"), item.get("limit")
    if candidate is None or limit is None:
        return None
    if unit == "in all":
        return float(candidate > limit)
    if stable is None:
        return None
    if unit == "points more":
        worse = candidate - stable
    elif not stable:
        return None
    else:
        worse = 100 * (stable - candidate if unit == "% less" else candidate - stable) / stable
    return max(0.0, worse / limit) if limit else float(worse > 0)


def _asked_for(obj: Mapping[str, Any], stable: Revision | None) -> str:
    """Returns the fields in which the spec differs from what the active revision was made from; empty if it does not."""
    if stable is None:
        return f"target {((obj.get('spec') or {}).get('target') or {}).get('model', '')}"
    spec = parse_spec(obj)
    if not isinstance(spec, Spec) or stable.same_intent(inputs := revision_inputs(spec)):
        return ""
    lines = changes(canonical(stable.inputs), canonical(inputs), "spec")
    more = f" and {len(lines) - FIELDS} more; see kubectl dflash diff" if len(lines) > FIELDS else ""
    return f"{', '.join(lines[:FIELDS])}{more}"


def _speculation(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    if found.get("mode") == "Schedule":
        ranges = ", ".join(f"{low} to {high} requests: {drafts + 1}" for low, high, drafts in found["ranges"])
        return f"{found.get('label')} ({ranges})"
    return "off" if found.get("mode") == "Off" else str(found.get("label", ""))


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def age(text: Any, now: datetime) -> float | None:
    """Returns the seconds since a time as Kubernetes writes it; None if it is none."""
    try:
        then = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()


def _ago(text: Any, now: datetime) -> str:
    seconds = age(text, now)
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
