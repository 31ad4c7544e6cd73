"""What ``status`` shows of a DFlashDeployment: pure, from the objects as the API server returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dflash_controller.api.gates import GATE_SPECS
from dflash_controller.api.inputs import canonical, revision_inputs
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.cli.field_changes import changes
from dflash_controller.cli.standing import condition, deleted, unseen
from dflash_controller.cli.times import ago, happened
from dflash_controller.planning.revisions.revision import Revision

BAR = 20
"""Cells of a bar."""
EVENTS = 6
FIELDS = 4
"""Fields of the spec that are shown where it differs from what runs."""
NOTHING = "-"
"""Shown where there is no recent value."""
_MEASURED = (
    ("acceptance", "acceptanceLength", "tokens per verify step", False),
    ("speed", "tokensPerSecond", "tokens/s, all replicas", True),
    ("step time", "stepTimeMilliseconds", "ms per verify step", False),
    ("concurrency", "concurrency", "requests in service per replica", True),
)
"""Title, field of ``status.metrics``, unit, and whether it says how much load there is."""
NOT_SEEN = "NotSeen"
"""Shown as the reason where the operator has not seen the spec: its conditions are about the one before."""
UNKNOWN = "Unknown"
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
    """Returns the state in a few words, and the message of what matters most. A state that is of an earlier spec is said to be so."""
    if since := deleted(obj):
        return f"being deleted since {since}", ""
    said = unseen(obj)
    state, message = _conditions(obj)
    if not said or not condition(obj, "Ready"):
        return state, message
    told = f"The operator has not seen this spec ({said}). Of the one before it said {state}{f': {message}' if message else ''}"
    return f"{UNKNOWN} {NOT_SEEN}", told


def _conditions(obj: Mapping[str, Any]) -> tuple[str, str]:
    for kind, wrong in (("Stalled", "True"), ("Ready", "False"), ("Available", "False")):
        found = condition(obj, kind)
        if found.get("status") == wrong:
            return f"{kind}={wrong} {found.get('reason', '')}", str(found.get("message", ""))
    ready = condition(obj, "Ready")
    if not ready:
        return "not seen by an operator yet", "Is the operator running, and does it serve this namespace?"
    return f"Ready={ready.get('status')} {ready.get('reason', '')}", str(ready.get("message", ""))


def facts(obj: Mapping[str, Any], now: datetime, stable: Revision | None = None, left: str = "") -> list[tuple[str, str]]:
    """Returns name and value of what the deployment runs and measures.

    ``stable`` is its active revision; None if it is not known. ``left`` is the time since which nobody renews the operator's Lease; empty
    if somebody does, or it is not known.
    """
    status = obj.get("status") or {}
    speculation, tuning = status.get("speculation") or {}, status.get("tuning") or {}
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
    found += _measured(status, now, left)
    if tuning:
        state = ", ".join(dict.fromkeys(str(tuning.get(key)) for key in ("state", "reason")))
        found.append(("tuner", f"{state}: {tuning.get('message', '')}"))
    return [(name, value) for name, value in found if value]


def unmeasured(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns since when the operator has measured nothing, and the reason; None if it measures."""
    found = condition({"status": status}, "MetricsAvailable")
    if not found or found.get("status") == "True":
        return None
    return str(found.get("lastTransitionTime") or "an unknown time"), str(found.get("reason", ""))


def idle_since(status: Mapping[str, Any]) -> str:
    """Returns the time at which the engines were last found without traffic; empty if they had some, or nothing is measured.

    They may have been idle before. Acceptance, step time and concurrency cannot be measured then, and keep their last values, beside a
    speed of 0. Values from before a time without measurements say nothing about that time.
    """
    metrics = status.get("metrics") or {}
    if unmeasured(status) is not None or not _without_traffic(metrics):
        return ""
    available = condition({"status": status}, "MetricsAvailable").get("lastTransitionTime")
    measured = str(metrics.get("measuredAt") or "an unknown time")
    return max(measured, str(available)) if available and metrics.get("measuredAt") else measured


def outlived(obj: Mapping[str, Any], left: tuple[str, str] | None) -> tuple[str, str] | None:
    """Returns the Lease that nobody renews, and since when; None where the status is newer: then its operator works without that Lease."""
    status = obj.get("status") or {}
    times = [(status.get("metrics") or {}).get("measuredAt"), *(item.get("lastTransitionTime") for item in status.get("conditions") or ())]
    return left if left and all(str(time or "") <= left[1] for time in times) else None


def _without_traffic(metrics: Mapping[str, Any]) -> bool:
    """Returns whether there was none. A concurrency of 0 is told of no engine that has a request, so no speed beside it is of then."""
    return any(value is not None and _number(value) == "0" for value in (metrics.get("tokensPerSecond"), metrics.get("concurrency")))


def rollout(obj: Mapping[str, Any], now: datetime) -> str:
    """Returns the rollout in a sentence; empty if there was none."""
    found = (obj.get("status") or {}).get("rollout") or {}
    if not found:
        return ""
    phase = found.get("phase", "")
    when = found.get("startedAt") if phase in _UNFINISHED else found.get("finishedAt") or found.get("startedAt")
    reason = f" ({found['reason']})" if found.get("reason") not in (None, "", phase) else ""
    message = f": {found['message']}" if found.get("message") else ""
    return f"{phase}{reason} {found.get('revision', '')}, {ago(when, now) or 'now'}{message}"


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
        yield ago(happened(event), now), str(event.get("reason", "")), str(event.get("message", ""))


def row(obj: Mapping[str, Any]) -> list[str]:
    """Returns the cells of one deployment in the list of all."""
    status = obj.get("status") or {}
    metrics, phase = status.get("metrics") or {}, (status.get("rollout") or {}).get("phase", "")
    none, other = _without_traffic(metrics) or unmeasured(status) is not None, bool(unseen(obj))
    return [
        obj["metadata"]["name"],
        UNKNOWN if other else str(condition(obj, "Ready").get("status", UNKNOWN)),
        str(status.get("serving", "")),
        str((status.get("speculation") or {}).get("label", "")),
        NOTHING if none else _number(metrics.get("acceptanceLength")),
        NOTHING if none else _number(metrics.get("tokensPerSecond")),
        phase,
        NOT_SEEN if other else str(condition(obj, "Ready").get("reason", "")),
    ]


def _measured(status: Mapping[str, Any], now: datetime, left: str) -> Iterator[tuple[str, str]]:
    """Yields the measured values, and of which time they are. Of an engine without traffic only what does not depend on load is of now.

    ``left`` is the time since which nobody renews the operator's Lease; empty if somebody does, or it is not known.
    """
    metrics, health = status.get("metrics") or {}, condition({"status": status}, "MetricsAvailable")
    none, blind, some = (
        _without_traffic(metrics),
        unmeasured(status) or ((left, "nobody renews the operator's Lease") if left else None),
        False,
    )
    for name, key, unit, of_load in _MEASURED:
        if metrics.get(key) is None:
            continue
        some = True
        if none and of_load:
            yield name, NOTHING
        else:
            yield name, f"{_number(metrics[key])} {unit}{', when there was traffic' if none else ''}"
    if not some:
        return
    when = metrics.get("measuredAt")
    if blind:
        yield "traffic", f"not known since {blind[0]}: {blind[1]}"
    elif since := idle_since(status):
        yield "traffic", f"idle since {since} or earlier{f' ({text})' if (text := ago(since, now)) else ''}"
    if when and (blind or not none):
        yield "measured", f"{ago(when, now)}, over the window before{'' if blind else '; no value has left 10 % of it since'}"
    if health and health.get("status") != "True":
        yield "now", f"not measured, {health.get('reason', '')}: {health.get('message', '')}"


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
