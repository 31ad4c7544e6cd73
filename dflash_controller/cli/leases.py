"""The Lease of an operator, which tells that one runs, or until when one ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dflash_controller.cli.failures import Failure
from dflash_controller.cli.times import age

if TYPE_CHECKING:
    from dflash_controller.cli.connection import Cluster

NAME = "dflash-operator"
"""Name of the Lease of an operator that was not given another one."""
_CLOCKS_DIFFER_S = 30.0
"""Seconds by which the clocks of this machine and of the operator may differ."""


def read(cluster: Cluster) -> list[Mapping[str, Any]]:
    """Returns the Leases of operators in all namespaces; empty if they may not be read."""
    from dflash_controller.cluster.kinds import LEASE

    try:
        return list(cluster.objects(LEASE, None, field_selector=f"metadata.name={NAME}"))
    except Failure:
        return []


def leader(leases: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """Returns which Lease has a holder that renews it, and who that is; empty if none has."""
    for each in leases:
        if (holder := _spec(each).get("holderIdentity")) and _fresh(each, now):
            return f"{_name(each)} is held by {holder}"
    return ""


def abandoned(leases: Sequence[Mapping[str, Any]], now: datetime) -> tuple[str, str] | None:
    """Returns the Lease that was renewed last, and when; None if there is none, or it has not expired.

    One that was just given back has not either: an operator that is replaced does that.
    """
    renewed = [each for each in leases if age(_spec(each).get("renewTime"), now) is not None]
    if not renewed or any(_fresh(each, now) for each in renewed):
        return None
    last = max(renewed, key=lambda each: str(_spec(each)["renewTime"]))
    return _name(last), f"{str(_spec(last)['renewTime'])[:19]}Z"


def _fresh(lease: Mapping[str, Any], now: datetime) -> bool:
    seconds = age(_spec(lease).get("renewTime"), now)
    return seconds is not None and seconds <= float(_spec(lease).get("leaseDurationSeconds") or 0) + _CLOCKS_DIFFER_S


def _spec(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    return lease.get("spec") or {}


def _name(lease: Mapping[str, Any]) -> str:
    return f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
