"""Finds the revision that the spec asks for.

There are two keys. The *intent* is the user's inputs without speculation. The *revision* is the intent with the active speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dflash_controller.api import defaults
from dflash_controller.api.inputs import revision_inputs
from dflash_controller.api.speculation import Speculation
from dflash_controller.api.types import Spec
from dflash_controller.engines.resolved import Resolved
from dflash_controller.planning.revisions.drafter_health import collapsed, switched_off
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState

U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class PendingRevision:
    """A revision that is not stored yet."""

    inputs: Mapping[str, Any]
    block_size_as_written: int | None
    speculation: Speculation
    resolved: Resolved
    doubts: tuple[str, ...] = ()
    """What it is made without, for the user to know."""


def desired_revision(
    spec: Spec, records: Sequence[Revision], stable: Revision | None, resolve: Callable[[Resolved | None], Resolved | U]
) -> Revision | PendingRevision | U:
    """Returns the stored revision that the spec asks for, a draft of it if none is stored, or what ``resolve`` returns in place of values.

    A stored intent keeps the values it was resolved with, whatever the current defaults are. If an intent failed after a change of target,
    drafter or engine, it has failed at every block size, and its failed revision is returned. A failed trial of the tuner does not count
    against the intent. ``resolve`` receives the values of the active revision unless ``restartId`` changed. A change made for another
    reason therefore does not pick up newer defaults.
    """
    inputs = revision_inputs(spec)
    alike = sorted((record for record in records if record.same_intent(inputs)), key=lambda record: record.number, reverse=True)
    if alike:
        resolved = alike[0].resolved
    else:
        restarted = stable is not None and stable.inputs.get("restartId") != inputs.get("restartId")
        outcome = resolve(None if stable is None or restarted else stable.resolved)
        if not isinstance(outcome, Resolved):
            return outcome
        resolved = outcome
    failed = next((record for record in alike if record.state is RevisionState.FAILED and binds_user(record)), None)
    if failed is not None and stable is not None and not stable.same_intent(inputs):
        return failed
    speculation = effective_speculation(spec, resolved.trained_block_size, stable)
    same = next((record for record in alike if record.speculation == speculation), None)
    return same or PendingRevision(inputs, spec.block_size, speculation, resolved)


def binds_user(record: Revision) -> bool:
    """Returns whether a failure of this revision counts against the user's request for it.

    A failure that a trial of the tuner found binds the tuner alone. A drafter that collapsed in service collapses at every block size.
    """
    return record.origin != Origin.TUNER or collapsed(record)


def rolled_back(wanted: Revision | PendingRevision) -> bool:
    """Returns whether the revision that the spec asks for was tried for the user and failed."""
    return isinstance(wanted, Revision) and wanted.state is RevisionState.FAILED and binds_user(wanted)


def block_acted_upon(spec: Spec, record: Revision) -> int | None:
    """Returns the ``spec.blockSize`` that this revision last acted upon, or None if the spec had none.

    A revision of an older operator acted upon the value that it was created with. If the memory was lost, the current value counts as acted
    upon, because a lost annotation must not restart an engine.
    """
    if record.trial.asked_block is not None:
        return record.trial.asked_block or None
    return spec.block_size if record.trial_lost else record.block_size_as_written


def acts_at_once(spec: Spec, stable: Revision) -> bool:
    """Returns whether the spec's block size needs no new revision: it names none, or the speculation that stable already runs."""
    return spec.block_size is None or defaults.speculation_of(spec.block_size) == stable.speculation


def effective_speculation(spec: Spec, trained_block_size: int, stable: Revision | None) -> Speculation:
    """Returns the speculation that the spec asks for, given the active revision.

    With tuning Off, an explicit ``blockSize`` always applies. With Advise and Auto, it applies at creation and whenever it differs from
    the value last acted upon. Otherwise the active speculation stays, so a change of mode never changes a running engine.
    """
    tuned = defaults.effective_tuning(spec, trained_block_size).mode != "Off"
    if spec.block_size is not None and (stable is None or not tuned or spec.block_size != block_acted_upon(spec, stable)):
        return defaults.speculation_of(spec.block_size)
    if stable is not None and switched_off(stable) and not stable.same_intent(revision_inputs(spec)):
        # The previous drafter collapsed, not the one that the spec names now.
        return defaults.speculation_of(defaults.block_size(spec, trained_block_size))
    if stable is not None and stable.speculation.max_block_size <= trained_block_size:
        return stable.speculation
    return defaults.speculation_of(defaults.block_size(spec, trained_block_size))
