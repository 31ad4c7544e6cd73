"""Decides whether the target still accepts tokens of the active drafter, and what to do if it does not.

A drafter that does not fit (damaged weights, another target's drafter, a quantised drafter) raises no error. The text stays correct, but
the target rejects every draft and each token costs a whole verify step. Only one metric shows it: an acceptance length near 1.

A drafter has collapsed below an acceptance length of 1.3, the limit of a rollout's fast path. It has recovered only after minutes above
1.6, so traffic near one limit cannot make the condition flap. A short block does not reach 1.6 as easily, so its limits are those of the
same drafter at that block (``limits``). A working drafter reaches 2.09 tokens per step on the hardest published workload (GovReport at
32 K of context, DFlash paper, table 4).

A collapse belongs to drafter and engine, not to the block size. The revision's history records it, so nothing returns to that revision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from dflash_controller.analysis.primary import COLLAPSED
from dflash_controller.api.conditions import ConditionType, Reason, get_condition
from dflash_controller.api.speculation import Off, Speculation
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.model.change import Part
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.planning.revisions.diff import changed_values
from dflash_controller.planning.revisions.revision import Revision, RevisionState
from dflash_controller.tuner.acceptance import mean_length

RECOVERED = 1.6
"""Acceptance length, in tokens per verify step at a long block, above which a collapsed drafter has recovered."""
WINDOW_S = 60.0
"""All load samples that ended within this many seconds are pooled. A load sample of 60 s that began before the collapse has left the window
within two minutes."""
LOOK_BACK_S = 900.0
"""Maximum age of a load sample in seconds. With little traffic, older samples are added, newest first, until there are enough steps."""
RECOVERY_S = LOOK_BACK_S
"""Minimum duration of a reported collapse in seconds. Recovery is judged on all load samples of this period: it is not urgent, and a
condition that flaps is a nuisance. The mean of load samples of 30 s that scatter by 10 % around 1.5 (between the limits) stays 3.5 of its
standard deviations below 1.6. With 5 min it would be 2, and the condition would change 30 times a day."""
TELL_STEPS = 2_000
"""Verify steps needed before the drafter is judged, as in a rollout: 17 per second over two minutes. At 1.9 tokens per step they are 12
answers of 300 tokens. Acceptance lengths of single answers scatter by about 20 %. On a log scale, the mean of 12 answers at 1.9 is 6 of its
standard deviations above 1.3; that of one answer (200 steps) would be less than 2."""
ACT_STEPS = 5_000
"""Verify steps needed before engines are restarted, as in a rollout's fast path. Near length 1 they are about 20 answers of 250 tokens."""
_SUSPECT_FLAG = re.compile(r"quant|load-format|kv-cache-dtype")
_VERDICTS = frozenset({RevisionState.STABLE, RevisionState.FAILED})


@dataclass(frozen=True, slots=True)
class DrafterHealth:
    """The value of condition SpeculationHealthy. ``value`` is None (Unknown) if there were too few verify steps to judge."""

    value: bool | None
    reason: Reason
    message: str
    confirmed: bool = False
    """True if the drafter has collapsed now, on at least ``ACT_STEPS`` verify steps: enough to act."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """What replaces a collapsed revision."""

    speculation: Speculation
    record: Revision | None = None
    """The revision to return to; None for the active revision with ``speculation``."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Pooled load samples. ``length`` and the limits are acceptance lengths in tokens per verify step."""

    steps: float
    length: float
    collapsed_below: float
    recovered_above: float


@cache
def limits(block: int) -> tuple[float, float]:
    """Returns the acceptance lengths at ``block`` (2 or more) below which a drafter has collapsed, and above which it has recovered.

    With a constant acceptance probability p per draft, a long block has length 1 ÷ (1 − p). That gives one p for 1.3 and one for 1.6; the
    limits are the lengths of these p at ``block``. They are 1.30 and 1.60 from block 8 on, 1.30 and 1.57 at block 4, 1.23 and 1.38 at
    block 2.
    """
    low, high = (mean_length(1 - 1 / length, 1.0, block) for length in (COLLAPSED, RECOVERED))
    return low, high


def judge(
    load_samples: Iterable[LoadSample],
    measured: str | None,
    now_s: float,
    stable: Revision,
    records: Sequence[Revision],
    status: Mapping[str, Any],
    asked_block: int | None,
) -> DrafterHealth:
    """Returns the health of the drafter of the active revision.

    ``load_samples`` are those of the last ``LOOK_BACK_S``, of the revision named ``measured``. They count only if that is the active
    revision. ``status``, as last written, counts only if it describes the active revision. ``asked_block`` is spec.blockSize; 1 means that
    the user asked for no speculation.

    Without enough traffic, the last verdict on this revision stands: an idle drafter has neither recovered nor collapsed. Without an
    earlier verdict the value is Unknown, as for everything that is not measured, and raises no alarm. If speculation was switched off
    without a request of the user, the value stays False, because the deployment is slower than it should be. It ends with another drafter,
    or when the user sets spec.blockSize to 1. The message of a collapse does not change after it was found, so noise causes no write.
    """
    if isinstance(stable.speculation, Off):
        return _off(stable, records, asked_block)
    # A condition names no revision, but the status that contains it does.
    ours = status.get("stableRevision") == stable.name
    seen = [load_sample for load_sample in load_samples if measured == stable.name and load_sample.block > 1 and load_sample.steps > 0]
    before = get_condition(status.get("conditions") or (), ConditionType.SPECULATION_HEALTHY) if ours else None
    words = _found_before(before, stable)
    pool = _pooled(seen, now_s, TELL_STEPS, WINDOW_S)
    if before is not None and words is not None:
        lately = _pooled(seen, now_s, TELL_STEPS, RECOVERY_S)
        if lately is not None and lately.length > lately.recovered_above and now_s - _since_s(before) >= RECOVERY_S:
            return _ACCEPTING
    elif pool is None and before is not None and before.get("reason") == Reason.ACCEPTING:
        return _ACCEPTING
    elif pool is None:
        return DrafterHealth(None, Reason.NO_TRAFFIC, f"Too little traffic yet to judge the drafter: it needs {TELL_STEPS} verify steps")
    elif pool.length >= pool.collapsed_below:
        return _ACCEPTING
    else:
        words = _collapse(stable, pool)
    much = _pooled(seen, now_s, ACT_STEPS, WINDOW_S)
    collapsing = pool is not None and pool.length < pool.collapsed_below and much is not None and much.length < much.collapsed_below
    return DrafterHealth(False, Reason.DRAFTER_COLLAPSED, words, confirmed=collapsing)


_ACCEPTING = DrafterHealth(True, Reason.ACCEPTING, "The target accepts the drafter's tokens")


def remedy(records: Sequence[Revision], stable: Revision, mode: str, *, may_go_back: bool = True) -> Fallback | None:
    """Returns the fallback for ``stable``, which has collapsed. Returns None if the operator only reports it.

    It acts in ``mode`` Auto only. It returns to the newest revision that was active, has not failed since, has the same target (so that
    answers to users do not change), and differs in drafter or engine from every revision that ever collapsed. It therefore does not return
    to a branch whose weights were replaced, because the name is the same. ``may_go_back`` is spec.rollout.automaticRollback. Otherwise
    speculation is switched off, unless that was tried with the same intent and failed. Each collapse excludes more revisions, and Off is
    the last one, so there is no cycle.
    """
    if mode != "Auto" or isinstance(stable.speculation, Off):
        return None
    bad = [stable, *(record for record in records if collapsed(record))]
    healthy = [
        record
        for record in records
        if may_go_back
        and _was_healthy(record)
        and record.resolved.target == stable.resolved.target
        and not isinstance(record.speculation, Off)
        and not any(_alike(record, one) for one in bad)
    ]
    if healthy:
        back = max(healthy, key=lambda record: record.number)
        return Fallback(back.speculation, back)
    already_failed = any(
        record.state is RevisionState.FAILED and isinstance(record.speculation, Off) and record.same_intent(stable.inputs)
        for record in records
    )
    return None if already_failed else Fallback(Off())


def collapsed(record: Revision) -> bool:
    """Returns whether the revision was ever active and was replaced because its drafter had collapsed."""
    return any(entry["reason"] == Reason.DRAFTER_COLLAPSED and entry["outcome"] in _VERDICTS for entry in record.history)


def to_be_failed(records: Iterable[Revision], stable: Revision) -> list[Revision]:
    """Returns the collapsed revisions that ``stable`` replaced and that are not Failed yet: the operator stopped between two writes."""
    return [
        record
        for record in records
        if record.hash != stable.hash
        and record.state in (RevisionState.STABLE, RevisionState.RETIRED)
        and (last := _last_verdict(record)) is not None
        and last["reason"] == Reason.DRAFTER_COLLAPSED
    ]


def switched_off(record: Revision) -> bool:
    """Returns whether a collapse switched speculation off in this revision, rather than the user or the tuner."""
    return isinstance(record.speculation, Off) and record.asked.get("reason") == Reason.DRAFTER_COLLAPSED


def may_draft(stable: Revision, records: Iterable[Revision]) -> bool:
    """Returns whether the tuner may choose block sizes. It may not after a collapse, because the drafter collapses at every block size."""
    return not switched_off(stable) and not any(collapsed(record) and record.same_intent(stable.inputs) for record in records)


def _off(stable: Revision, records: Sequence[Revision], asked_block: int | None) -> DrafterHealth:
    if asked_block == 1 or not switched_off(stable):
        return DrafterHealth(True, Reason.SPECULATION_OFF, "The target runs without speculation")
    found = [record for record in records if collapsed(record) and record.same_intent(stable.inputs)]
    blamed = max(found, key=lambda record: record.number).name if found else "an earlier revision"
    message = (
        f"Speculation is switched off because the drafter of {blamed} had collapsed: {_named(stable.resolved.drafter)}. "
        "Set spec.drafter to one that works, change spec.restartId to try it again, or set spec.blockSize to 1 to keep speculation off"
    )
    return DrafterHealth(False, Reason.SPECULATION_OFF, message)


def _found_before(before: Mapping[str, Any] | None, stable: Revision) -> str | None:
    """Returns the message of this revision's collapse as the status shows it, or None."""
    if before is None or before.get("reason") != Reason.DRAFTER_COLLAPSED:
        return None
    words = str(before.get("message", ""))
    return words if words.startswith(f"{stable.name}: ") else None


def _since_s(before: Mapping[str, Any]) -> float:
    """Returns when the condition got its value, in seconds since the epoch; 0 if it does not say."""
    try:
        return datetime.strptime(str(before.get("lastTransitionTime")), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _pooled(seen: Sequence[LoadSample], now_s: float, least_steps: int, window_s: float) -> _Pool | None:
    """Returns the pooled load samples of a window; ratios are taken of the sums.

    If the window has fewer than ``least_steps`` verify steps, older load samples are added. Returns None if there are still too few.
    """
    steps = committed = low = high = 0.0
    for load_sample in sorted(seen, key=lambda load_sample: load_sample.at_s, reverse=True):
        age_s = now_s - load_sample.at_s
        if age_s >= LOOK_BACK_S or (age_s >= window_s and steps >= least_steps):
            break
        # Under an engine's schedule the block changes with the load, and the limits change with the block.
        below, above = limits(load_sample.block)
        steps += load_sample.steps
        committed += load_sample.committed
        low += below * load_sample.steps
        high += above * load_sample.steps
    return _Pool(steps, committed / steps, low / steps, high / steps) if steps >= least_steps else None


def _collapse(stable: Revision, pool: _Pool) -> str:
    found = (
        f"{stable.name}: {pool.length:.2f} tokens per verify step over {float(f'{pool.steps:.2g}'):.0f} steps "
        f"at block size {stable.speculation.label()}; below {pool.collapsed_below:.2f} the drafter has collapsed"
    )
    return f"{found}. Likely causes: {'; '.join(_causes(stable))}"


def _causes(stable: Revision) -> list[str]:
    """Returns the likely causes of a collapse, as far as the revision shows them, in the order in which to check them."""
    resolved, causes = stable.resolved, []
    if flags := [flag for flag in (*resolved.recommended_args, *resolved.extra_args) if _SUSPECT_FLAG.search(flag)]:
        causes.append(f"{' and '.join(flags)}, if the drafter is loaded so too: a dummy or quantised one accepts nothing, without an error")
    drafter, target = resolved.drafter, resolved.target
    if drafter.pinned:
        causes.append(f"the weights of {_named(drafter)} (pinned, so they have not moved) are damaged, or not those of a drafter")
    else:
        causes.append(f"other weights were released as {_named(drafter)} (not pinned to a commit), or they are damaged")
    moved = "" if target.pinned else " (not pinned to a commit: it may have moved)"
    causes.append(f"the drafter was made for another target than {_named(target)}{moved}")
    if not flags:
        causes.append("target or drafter is quantised in a way the other was not made for")
    causes.append(f"the drafter was not trained for block size {stable.speculation.label()} (taken for: {resolved.trained_block_size})")
    return causes


def _named(model: ModelRef) -> str:
    revision = model.revision or "main"
    return f"{model.model}@{revision[:12] if model.pinned else revision}"


def _last_verdict(record: Revision) -> Mapping[str, str] | None:
    return next((entry for entry in reversed(record.history) if entry["outcome"] in _VERDICTS), None)


def _was_healthy(record: Revision) -> bool:
    """Returns whether the revision was active and has not failed since."""
    if record.state in (RevisionState.FAILED, RevisionState.CANDIDATE):
        return False
    last = _last_verdict(record)
    if last is None:
        return record.state in (RevisionState.STABLE, RevisionState.RETIRED)
    return last["outcome"] == RevisionState.STABLE


def _alike(one: Revision, other: Revision) -> bool:
    """Returns whether both revisions name the same drafter and use the same engine. If one collapses, so does the other."""
    return one.resolved.drafter == other.resolved.drafter and Part.ENGINE not in changed_values(one, other)
