"""Whether the active drafter still drafts anything the target accepts, and what to do where it does not.

A drafter that fits nothing (garbage weights, another target's drafter, a quantised one) raises no error: the text stays right, every
draft is refused, and each token costs a whole verify step. It shows in one figure alone, an acceptance length near 1.

The limit is that of a rollout's fast path: below 1.3 it has collapsed. Only above 1.6, over minutes, it has come back, so traffic around
one limit cannot make the condition flap. A short block cannot reach 1.6 so easily; its limits are those of the same drafter there
(``limits``). Working drafters accept 2.09 tokens per step on the hardest published workload (GovReport at 32 K of context, DFlash paper,
table 4).

A collapse belongs to drafter and engine, not to the block size, and it is remembered in the revision's history, so nothing goes back to it.
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
from dflash_controller.planning.revisions.diff import changed
from dflash_controller.planning.revisions.revision import Revision, RevisionState
from dflash_controller.tuner.acceptance import mean_length

RECOVERED = 1.6
"""Acceptance length of a long block above which a drafter that had collapsed drafts again."""
WINDOW_S = 60.0
"""All load samples that ended so recently count together. One load sample of 60 s that began before the collapse has then left the window
before two minutes are over."""
LOOK_BACK_S = 900.0
"""Where traffic is thin, older load samples are added until there are enough steps, newest first, but none older than this."""
RECOVERY_S = LOOK_BACK_S
"""A collapse stands for so long at least, and is taken back on all that happened in it: coming back is in no hurry, wavering is a nuisance.
Load samples of 30 s that scatter by 10 % around 1.5, between the limits, stay 3.5 of their mean's standard deviations below 1.6. After 5
min it would be 2, and the condition would turn 30 times a day."""
TELL_STEPS = 2_000
"""Verify steps it takes to say anything, as a rollout asks for: 17 a second over two minutes. At 1.9 tokens per step they are 12 answers of
300 tokens. Lengths of single answers scatter by some 20 %, so the mean of 12 is 6 of its standard deviations above 1.3, as logarithms; that
of one answer (200 steps) would be less than 2."""
ACT_STEPS = 5_000
"""Verify steps it takes to restart engines: next to length 1, about 20 answers of 250 tokens, as many as a rollout's fast path asks for."""
_SUSPECT_FLAG = re.compile(r"quant|load-format|kv-cache-dtype")
_VERDICTS = frozenset({RevisionState.STABLE, RevisionState.FAILED})


@dataclass(frozen=True, slots=True)
class DrafterHealth:
    """Condition SpeculationHealthy. ``value`` None: not enough was seen to say."""

    value: bool | None
    reason: Reason
    message: str
    confirmed: bool = False
    """Collapsed on as many steps as it takes to act, just now."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """What shall run in place of a collapsed revision."""

    speculation: Speculation
    record: Revision | None = None
    """The revision to go back to; None: the active one with ``speculation``."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """Load samples taken together."""

    steps: float
    length: float
    collapsed_below: float
    recovered_above: float


@cache
def limits(block: int) -> tuple[float, float]:
    """Acceptance lengths at ``block`` (2 or more) below which a drafter has collapsed, and above which it has come back.

    1.3 and 1.6 are what a constant chance p of each draft gives at a long block, 1 ÷ (1 − p); here is what the same p gives at this one.
    From block 8 on they are 1.30 and 1.60; at 4 they are 1.30 and 1.57, at 2 they are 1.23 and 1.38.
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
    """Judge the active revision.

    ``load_samples``: of the last ``LOOK_BACK_S``, of the revision named ``measured``; where that is another one, they do not count. Neither
    does what ``status``, as last written, says of another revision. ``asked_block`` is spec.blockSize: who asks for 1 has what was asked
    for.

    Without enough traffic what was said of this revision stands: an idle drafter has neither recovered nor collapsed. Where nothing was
    said the answer is Unknown, as everywhere where nothing was measured; it raises no alarm. A switch-off that the user did not ask for
    stays False until there is another drafter, or somebody agrees with it: the deployment is slower than it should be.
    The words of a collapse stay as they were when it was found, so that noise causes no write.
    """
    if isinstance(stable.speculation, Off):
        return _off(stable, records, asked_block)
    # A condition names no revision. The status that shows it does.
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
    """What to do about ``stable``, which has collapsed. None: nothing but telling.

    Only in ``mode`` Auto. Back to the newest revision that was in force, was not given up since, has the same target (going back must not
    change what users are answered), and differs from everything that ever collapsed in what may be to blame: drafter or engine. A branch
    whose weights were replaced is therefore not gone back to under its own name. ``may_go_back`` is spec.rollout.automaticRollback.
    Otherwise speculation goes off, unless that was tried on this very revision and given up. Each collapse rules out more revisions and
    Off ends the row, so it never goes round.
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
    """Once it was in force and was left because its drafter had collapsed, however long ago."""
    return any(entry["reason"] == Reason.DRAFTER_COLLAPSED and entry["outcome"] in _VERDICTS for entry in record.history)


def to_be_failed(records: Iterable[Revision], stable: Revision) -> list[Revision]:
    """Revisions marked as collapsed that were left for ``stable`` and are not Failed yet: the operator ended between two writes."""
    return [
        record
        for record in records
        if record.hash != stable.hash
        and record.state in (RevisionState.STABLE, RevisionState.RETIRED)
        and (last := _last_verdict(record)) is not None
        and last["reason"] == Reason.DRAFTER_COLLAPSED
    ]


def switched_off(record: Revision) -> bool:
    """Speculation was switched off in it because of a collapse, not because somebody or the tuner found that better."""
    return isinstance(record.speculation, Off) and record.asked.get("reason") == Reason.DRAFTER_COLLAPSED


def may_draft(stable: Revision, records: Iterable[Revision]) -> bool:
    """Whether the tuner may choose among block sizes: not once the drafter has collapsed, which it then does at every block size."""
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
    """The words of a collapse of this very revision that the status shows."""
    if before is None or before.get("reason") != Reason.DRAFTER_COLLAPSED:
        return None
    words = str(before.get("message", ""))
    return words if words.startswith(f"{stable.name}: ") else None


def _since_s(before: Mapping[str, Any]) -> float:
    """Since when the condition has its value, seconds since the epoch; 0 where it does not tell."""
    try:
        return datetime.strptime(str(before.get("lastTransitionTime")), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _pooled(seen: Sequence[LoadSample], now_s: float, least_steps: int, window_s: float) -> _Pool | None:
    """The load samples of a window together, sums before quotients, and older ones where they are fewer than ``least_steps`` verify steps.

    None where these do not suffice either.
    """
    steps = committed = low = high = 0.0
    for load_sample in sorted(seen, key=lambda load_sample: load_sample.at_s, reverse=True):
        age_s = now_s - load_sample.at_s
        if age_s >= LOOK_BACK_S or (age_s >= window_s and steps >= least_steps):
            break
        # Under an engine's schedule the block moves with the load, and the limits with it.
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
    """What is known of the revision, in the order in which it is worth looking at."""
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
    """It was in force, and was not given up after that."""
    if record.state in (RevisionState.FAILED, RevisionState.CANDIDATE):
        return False
    last = _last_verdict(record)
    if last is None:
        return record.state in (RevisionState.STABLE, RevisionState.RETIRED)
    return last["outcome"] == RevisionState.STABLE


def _alike(one: Revision, other: Revision) -> bool:
    """The same drafter, as it is named, in the same engine: where one collapses, the other does."""
    return one.resolved.drafter == other.resolved.drafter and Part.ENGINE not in changed(one, other)
