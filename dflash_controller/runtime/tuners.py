"""Holds the tuner's knowledge of every deployment. The collector feeds it; it is kept in memory and stored with the active revision.

Deployments of the same pair lend each other what they know of step times (``pairs``).
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from dflash_controller.api.defaults import TUNING_WINDOW_S
from dflash_controller.api.quantity import parse_duration
from dflash_controller.api.speculation import Schedule
from dflash_controller.engines.resolved import STEP_TIME_FIELDS, Resolved
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.snapshot import Key, Snapshot
from dflash_controller.planning.revisions.drafter_health import LOOK_BACK_S
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.state.inputs import Knowledge
from dflash_controller.planning.status.tuning import reported_decision, standing
from dflash_controller.runtime.pairs import Pairs
from dflash_controller.tuner.decision import TunerDecision
from dflash_controller.tuner.learner import Learner
from dflash_controller.tuner.machine import Machine
from dflash_controller.tuner.points import StepPoint
from dflash_controller.tuner.policy import needed
from dflash_controller.tuner.priors import machine_of, prior_of
from dflash_controller.tuner.schedule import true_step_s
from dflash_controller.tuner.schedule_price import MEASURED_PRICE, PriceLearner, price_of
from dflash_controller.tuner.step_times import StepTimes
from dflash_controller.tuner.window import SLOT_S

_log = logging.getLogger(__name__)
_PRICE = "schedulePrice"
"""Key of the stored knowledge that holds the price of a schedule."""

LENT_S = 600.0
"""Minimum seconds between two times a deployment lends, and between two times it borrows once it has borrowed."""


class Measured(Protocol):
    """The part of the measurements that the tuners use."""

    def load_samples(self, key: Key, revision: str) -> Iterable[LoadSample]: ...

    def measured(self, key: Key, stable: str) -> int: ...


@dataclass(slots=True)
class _Case:
    """The tuner's knowledge of one deployment."""

    stable: str
    """The name of the stable revision."""
    curve: tuple[object, ...]
    learner: Learner
    machine: Machine
    stored_at_s: float
    """When the knowledge was last stored with a revision, or when this case began, in seconds since the epoch."""
    news: bool = False
    """True if something was learned since ``stored_at_s``."""
    kept_with: str | None = None
    """The revision that stores the record. The record moves when another revision becomes active. None if nothing is stored yet."""
    lent_at_s: float = 0.0
    borrowed_at_s: float = 0.0
    borrowed: int = 0
    """The version of the pair's knowledge that was borrowed."""
    recent: deque[LoadSample] = field(default_factory=deque)
    fixed: tuple[StepPoint, ...] = ()
    """What was learned before a schedule ran, with fixed block sizes. Its price is told by comparison with this."""
    short_since_s: float | None = None
    """Since when too few pods have been measured, in seconds since the epoch; None while there are enough."""
    reported: tuple[str, ...] = ()
    reported_since: datetime | None = None


class Tuners:
    """The tuner's knowledge of all deployments. No method waits.

    ``record_s`` is the minimum time in seconds between two writes of the knowledge to the revision. ``slot_s`` is the slot of the learners
    in seconds.
    """

    def __init__(self, measured: Measured, record_s: float, now: Callable[[], datetime], *, slot_s: float = SLOT_S) -> None:
        self._measured = measured
        self._record_s = record_s
        self._now = now
        self._slot_s = slot_s
        self._cases: dict[Key, _Case] = {}
        self._prices: dict[Machine, PriceLearner] = {}
        """The price of a schedule on each kind of machine. All deployments with one share it."""
        self._pairs = Pairs()

    def knowledge(self, snapshot: Snapshot, stored: StoredRevisions) -> Knowledge:
        """Returns what is known at this evaluation; nothing before a revision is active. ``stored`` are the snapshot's revisions."""
        key, now, stable = snapshot.key, self._now(), stored.stable
        if stable is None:
            return Knowledge()
        case = self._case(key, stable, stored.records, now.timestamp())
        # What runs on the same curve teaches it too: a replica on trial, whatever becomes of it.
        tried = stored.candidate if stored.candidate is not None and _curve(stored.candidate) == case.curve else None
        if not any(record is not None and isinstance(record.speculation, Schedule) for record in (stable, tried)):
            case.fixed = case.learner.points
        new = self._samples(key, case, stable)
        on_trial = self._samples(key, case, tried) if tried is not None else []
        if new or on_trial:
            case.learner.take(new, now.timestamp())
            case.learner.take(on_trial, now.timestamp(), on_trial=True)
            case.news = case.news or any(load_sample.served for load_sample in (*new, *on_trial))
            case.recent.extend(new)
        self._share(key, case, stable.resolved, now.timestamp())
        while case.recent and case.recent[0].at_s < now.timestamp() - LOOK_BACK_S:
            case.recent.popleft()
        measured = self._measured.measured(key, stable.hash)
        if measured >= needed(sum(pod.serving for pod in snapshot.pods)):
            case.short_since_s = None
        elif case.short_since_s is None:
            case.short_since_s = now.timestamp()
        return Knowledge(
            learned=case.learner.learned(now.timestamp(), _window_s(snapshot)),
            recent=tuple(case.recent),
            measured=measured,
            short_for_s=0.0 if case.short_since_s is None else now.timestamp() - case.short_since_s,
            schedule_price=price_of(case.machine, self._prices),
            record=self._record(case, now.timestamp()),
            reported=case.reported,
            reported_since=case.reported_since,
        )

    def _samples(self, key: Key, case: _Case, revision: Revision) -> list[LoadSample]:
        """Returns the new load samples of a revision's pods, with the step times of fixed block sizes."""
        load_samples = list(self._measured.load_samples(key, revision.hash))
        if not isinstance(revision.speculation, Schedule):
            return load_samples
        if case.fixed:
            steps = StepTimes(case.fixed, prior_of(revision.resolved).steps)
            self._prices.setdefault(case.machine, PriceLearner()).take(load_samples, revision.speculation, case.fixed, steps)
        price = price_of(case.machine, self._prices) or MEASURED_PRICE
        return [replace(one, step_s=true_step_s(one.step_s, one.block, revision.speculation, price=price)) for one in load_samples]

    def decided(self, key: Key, decision: TunerDecision) -> None:
        """Records the decision of a plan that was carried out. Logs a decision that differs from the last, with all its inputs."""
        case = self._cases.get(key)
        if case is None:
            return
        case.learner.note(decision, self._now().timestamp())
        words, before = standing(decision), case.reported
        if words != before:
            case.reported, case.reported_since = words, self._now()
        distinct = reported_decision(decision)
        if distinct != before[: len(distinct)]:
            told = {"namespace": key.namespace, "deployment": key.name, **decision.to_json(), "inputs": decision.inputs}
            _log.info("%s: tuner: %s", key, decision.message, extra={"decision": told})

    def stored(self, key: Key) -> None:
        """Notes that ``Knowledge.record`` has been written."""
        if case := self._cases.get(key):
            case.stored_at_s, case.news, case.kept_with = self._now().timestamp(), False, case.stable

    def forget(self, key: Key) -> None:
        """Drops a deployment that was deleted."""
        self._cases.pop(key, None)

    def _case(self, key: Key, stable: Revision, records: Sequence[Revision], now_s: float) -> _Case:
        case, curve = self._cases.get(key), _curve(stable)
        if case is not None and case.stable == stable.name:
            return case
        if case is not None and case.curve == curve:
            case.stable, case.machine = stable.name, machine_of(stable.resolved)
            case.stored_at_s = 0.0  # stores the knowledge at once: after a change it is needed most
            case.recent.clear()
            return case
        kept_with, record = _kept(stable, records)
        machine = machine_of(stable.resolved)
        learner = Learner.from_json(record, prior_of(stable.resolved).steps, slot_s=self._slot_s)
        case = _Case(stable.name, curve, learner, machine, now_s, kept_with=kept_with)
        self._cases[key] = case
        price = PriceLearner.from_json(record.get(_PRICE) if isinstance(record, Mapping) else None)
        if price.samples > (self._prices[machine].samples if machine in self._prices else 0):
            self._prices[machine] = price
        return case

    def _share(self, key: Key, case: _Case, resolved: Resolved, now_s: float) -> None:
        """Lends what the deployment knows to others of its pair, and borrows what they know."""
        own = key, case.curve
        if now_s - case.lent_at_s >= LENT_S:
            self._pairs.lend(own, resolved, case.learner.lend())
            case.lent_at_s = now_s
        version = self._pairs.version(resolved)
        if version != case.borrowed and now_s - case.borrowed_at_s >= LENT_S:
            case.learner.borrow(self._pairs.known(own, resolved))
            case.borrowed, case.borrowed_at_s = version, now_s

    def _record(self, case: _Case, now_s: float) -> str | None:
        moves = case.kept_with not in (None, case.stable)
        if not moves and not (case.news and now_s - case.stored_at_s >= self._record_s):
            return None
        price = self._prices.get(case.machine)
        data = case.learner.to_json() | ({_PRICE: price.to_json()} if price is not None and price.samples else {})
        return json.dumps(data, separators=(",", ":"), sort_keys=True)


def _window_s(snapshot: Snapshot) -> int:
    """Returns ``spec.tuning.window`` in seconds. Returns the default if it is absent or invalid: the tuner is not asked for such a spec."""
    tuning = ((snapshot.deployment or {}).get("spec") or {}).get("tuning") or {}
    try:
        return parse_duration(tuning["window"])
    except (KeyError, TypeError, ValueError):
        return TUNING_WINDOW_S


def _curve(record: Revision) -> tuple[object, ...]:
    return tuple(getattr(record.resolved, name) for name in STEP_TIME_FIELDS)


def _kept(stable: Revision, records: Sequence[Revision]) -> tuple[str | None, Any]:
    """Returns the name of a revision and the knowledge stored with it; None for both if there is none.

    It is the stable revision or, if that stores nothing yet, the newest revision with the same step-time curve.
    """
    for record in sorted(records, key=lambda record: (record.hash == stable.hash, record.number), reverse=True):
        if record.learned and _curve(record) == _curve(stable):
            try:
                return record.name, json.loads(record.learned)
            except (RecursionError, ValueError):
                _log.warning("%s: what the tuner had learned cannot be read; it learns anew", record.hash)
    return None, None
