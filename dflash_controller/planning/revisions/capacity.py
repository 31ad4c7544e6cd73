"""How many requests a replica serves at once: what was asked, what fits in memory by an estimate, what the engine says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_controller.api.defaults import speculation_of
from dflash_controller.engines import ENGINES
from dflash_controller.engines.memory import LEAST_CONTEXT, REMEDIES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.planning.revisions.revision import Revision

MEASURED = "requestCapacity"
"""The field of ``status.metrics`` that holds what the engines say."""
_SHORT = 0.95
"""A capacity by the cache is measured by the requests of a moment; one that is less below what was asked is not reported."""
_GB = 1e9


def effective(record: Revision, metrics: Mapping[str, Any] | None) -> int | None:
    """Returns the requests that a replica of the revision serves at once, at most those asked for; None while the engine has not said.

    ``metrics`` are those that the status shows of it.
    """
    measured, asked = (metrics or {}).get(MEASURED), record.resolved.max_concurrency
    if measured is None:
        return None
    return asked if measured >= _SHORT * asked else max(1, int(measured))


def limited(record: Revision, metrics: Mapping[str, Any] | None) -> str | None:
    """Returns a message if the engines serve fewer requests than were asked for; None if they serve all, or have not said."""
    asked, serves = record.resolved.max_concurrency, effective(record, metrics)
    if serves is None or serves >= asked:
        return None
    return f"Each replica serves {serves} requests at once, not the {asked} of spec.engine.maxConcurrency: more wait. {_remedy(record)}"


def does_not_fit(record: Revision) -> str | None:
    """Returns a message if, by an estimate, the requests asked for do not fit in the accelerators' memory; None if they fit, or unknown."""
    request = record.resolved.launch_request(record.speculation)
    found = ENGINES[record.resolved.engine].fit(request)
    if found is None or found.fitting >= found.asked:
        return None
    return (
        f"{found.asked} requests of {LEAST_CONTEXT} tokens at block {record.speculation.label()} need about {found.needed / _GB:.1f} GB of "
        f"each accelerator beside the weights, and {found.available / _GB:.1f} GB are left: about {found.fitting} fit. {_remedy(record)}"
    )


def by_block(
    record: Revision, metrics: Mapping[str, Any] | None, blocks: Iterable[int], recent: Sequence[LoadSample]
) -> tuple[tuple[int, float], ...]:
    """Returns (block size, requests that one replica's memory holds), where the engines' own capacity is measured.

    What a request holds depends on the block: engines keep a state for each token that they verify. So the capacity at another block is the
    measured one times the ratio of what a request holds, at the context that requests have. Slots of state that were rendered for the
    concurrency asked for say nothing about more, so a block at which all fit by the estimate counts as holding all.
    """
    measured, resolved = (metrics or {}).get(MEASURED), record.resolved
    if measured is None:
        return ()
    engine, current = ENGINES[resolved.engine], record.speculation.max_block_size
    context = _context(recent)
    now = engine.held_per_request(resolved.launch_request(record.speculation), context)
    found = [(current, float(measured))]
    for block in sorted(set(blocks) - {current}):
        request = resolved.launch_request(speculation_of(block))
        then, estimate = engine.held_per_request(request, context), engine.fit(request)
        if now is None or then is None:
            continue
        holds = measured * now / then
        if measured >= resolved.max_concurrency and estimate is not None:
            holds = max(holds, float(estimate.fitting))
        found.append((block, round(holds, 1)))
    return tuple(sorted(found))


def _context(recent: Sequence[LoadSample]) -> float:
    requests = sum(sample.requests for sample in recent if sample.context > 0)
    if requests <= 0:
        return float(LEAST_CONTEXT)
    return sum(sample.requests * sample.context for sample in recent if sample.context > 0) / requests


def _remedy(record: Revision) -> str:
    """Returns what would help, as a sentence without its full stop.

    A revision of an older operator, or a target that the catalog does not know, has no estimate: then only the flag itself can be named.
    """
    engine, request = ENGINES[record.resolved.engine], record.resolved.launch_request(record.speculation)
    found, flag = engine.fit(request), engine.slots_flag(request)
    remedies = found.remedies if found is not None else REMEDIES
    if found is None and flag:
        remedies = (f"write {flag} in spec.engine.extraArgs if the memory holds it", *remedies)
    first, *rest = remedies
    return f"{first[:1].upper()}{first[1:]}" + "".join(f", or {remedy}" for remedy in rest)
