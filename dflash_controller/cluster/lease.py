"""Leader election on a coordination.k8s.io/v1 Lease.

Another holder's lease has expired when *this* process has seen it unchanged for its duration; clocks of two machines are never compared.
By its own monotonic clock, this process stops being the leader ``renew_deadline_s`` after it began its last successful renewal, which is
earlier than any other process may take over.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflash_controller.cluster.client import Client, Obj
from dflash_controller.cluster.errors import ApiError, Conflict, NotFound
from dflash_controller.cluster.kinds import LEASE

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Times in seconds. Others take over after ``duration_s`` without a change; the holder stops leading after ``renew_deadline_s``."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration_s > self.renew_deadline_s > self.retry_period_s > 0:
            raise ValueError("leader election needs lease duration > renew deadline > retry period > 0")

    @property
    def look_s(self) -> float:
        """Time between two looks of a standby, shorter than between renewals: it counts ``duration_s`` from when it saw the last one."""
        return self.retry_period_s / 2

    @property
    def request_s(self) -> float:
        """Timeout of one request, less than the retry period. The ``Client`` given to the elector must not wait longer."""
        return self.retry_period_s * 0.9


class Elector:
    """A candidate for leadership. Call ``acquire``, then ``hold`` until it returns (leadership lost) or is cancelled, then ``release``."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing or LeaseTiming()
        self._clock = clock
        self._now = now
        self._lease: Obj | None = None
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self._answered_at: float | None = None

    def is_leader(self) -> bool:
        """Whether this process may write now."""
        return self._renewed_at is not None and self._clock() < self._renewed_at + self._timing.renew_deadline_s

    def silent(self) -> str | None:
        """Readiness check: returns a message if the API server has not answered for two lease durations, else None."""
        if self._answered_at is None:
            return "no answer yet"
        age = self._clock() - self._answered_at
        return f"no answer for {age:.0f} s" if age > 2 * self._timing.duration_s else None

    async def acquire(self) -> None:
        """Waits until this process is the leader. Failures of the API server are retried."""
        log.info("waiting for the lease %s/%s as %s", self._namespace, self._name, self._identity)
        while True:
            if await self._attempt():
                break
            await asyncio.sleep(self._pause_s())
        log.info("leading: %s holds the lease %s/%s", self._identity, self._namespace, self._name)

    async def hold(self) -> None:
        """Renews the lease and returns when leadership is lost. A lease not renewed in time is never resumed, even if nobody took it."""
        while True:
            await asyncio.sleep(self._timing.retry_period_s)
            if not self.is_leader():
                log.error("the lease %s/%s was not renewed within %g s", self._namespace, self._name, self._timing.renew_deadline_s)
                break
            if not await self._attempt() and self._holder() not in (self._identity, None):
                log.error("the lease %s/%s was taken by %s", self._namespace, self._name, self._holder())
                break
        self._renewed_at = None

    async def release(self) -> None:
        """Releases the lease at once, so that a standby need not wait for it to expire."""
        if self._renewed_at is None:
            return
        self._renewed_at = None
        try:
            # Read first: a cancelled renewal may have reached the API server.
            await self._read()
            if self._lease is None or self._holder() != self._identity:
                return
            spec = self._lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time(self._now())}
            await self._client.replace(LEASE, self._lease | {"spec": spec})
        except ApiError as error:
            log.warning("the lease %s/%s could not be released; it will expire: %s", self._namespace, self._name, error)

    async def _attempt(self) -> bool:
        """Takes or renews the lease if that is allowed. Returns whether this process holds it now."""
        try:
            if self._lease is None or self._holder() != self._identity:
                await self._read()
            if self._lease is not None and not self._allowed():
                return False
            started = self._clock()
            self._observe(await self._write(self._lease))
            self._renewed_at = started
        except Conflict:
            self._lease = None
            await self._read_quietly()
            return False
        except ApiError as error:
            log.warning("the lease %s/%s could not be renewed or read: %s", self._namespace, self._name, error)
            return False
        return True

    def _pause_s(self) -> float:
        """Returns the time to the next look: at once when the lease expires. Standbys differ a little, so that one is the first."""
        pause_s = self._timing.look_s * random.uniform(1.0, 1.2)
        left_s = self._expires_at() - self._clock()
        return left_s + random.uniform(0.01, 0.1) if 0 < left_s < pause_s else pause_s

    async def _read(self) -> None:
        try:
            self._observe(await self._client.get(LEASE, self._namespace, self._name))
        except NotFound:
            self._lease = None
            self._answered_at = self._clock()

    async def _read_quietly(self) -> None:
        try:
            await self._read()
        except ApiError as error:
            log.warning("the lease %s/%s could not be read: %s", self._namespace, self._name, error)

    async def _write(self, lease: Obj | None) -> Obj:
        now = _micro_time(self._now())
        spec: dict[str, Any] = dict(lease.get("spec") or {}) if lease else {}
        if spec.get("holderIdentity") != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
            spec["acquireTime"] = now
        spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": max(1, round(self._timing.duration_s)), "renewTime": now}
        if lease is None:
            metadata = {"namespace": self._namespace, "name": self._name}
            return await self._client.create(
                LEASE, {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": spec}
            )
        return await self._client.replace(LEASE, lease | {"spec": spec})

    def _observe(self, lease: Obj) -> None:
        spec = lease.get("spec") or {}
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        self._answered_at = self._clock()
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._answered_at
        self._lease = lease

    def _holder(self) -> str | None:
        holder: str | None = (self._lease.get("spec") or {}).get("holderIdentity") if self._lease else None
        return holder or None

    def _allowed(self) -> bool:
        """Returns whether this process may take the lease: it is its own, nobody's, or was unchanged for the holder's lease duration."""
        if self._holder() in (None, self._identity) or self._lease is None:
            return True
        return self._clock() >= self._expires_at()

    def _expires_at(self) -> float:
        """Returns when the lease as last seen expires, by this process's clock, if it does not change."""
        spec = (self._lease.get("spec") or {}) if self._lease else {}
        return self._seen_at + float(spec.get("leaseDurationSeconds") or self._timing.duration_s)


class SoleCandidate:
    """Replaces an Elector where exactly one process runs: it always leads."""

    def is_leader(self) -> bool:
        return True

    async def acquire(self) -> None:
        """Returns at once."""

    async def hold(self) -> None:
        """Waits until cancelled."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Does nothing."""


def _micro_time(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
