"""Fetches several models one after the other: what is there already, locks, free space for all of them, downloads, publishing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dflash_controller.fetch import engine_cache
from dflash_controller.fetch.download import Download, Patience
from dflash_controller.fetch.failures import FetchError
from dflash_controller.fetch.hub import Hub
from dflash_controller.fetch.lock import Lock
from dflash_controller.fetch.progress import Progress
from dflash_controller.fetch.selection import File, Manifest, Patterns, Wanted
from dflash_controller.fetch.storage import (
    Place,
    check_space,
    is_present,
    missing_bytes,
    publish,
    remove,
    storage_errors,
)
from dflash_controller.fetch.threads import run_all
from dflash_controller.fetch.users import prune, record
from dflash_controller.model.fetch_progress import in_units
from dflash_controller.model.fetch_report import FetchReason


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of the program."""

    into: Path
    models: tuple[Wanted, ...]
    patterns: Patterns = field(default_factory=Patterns)
    user: str | None = None
    keep: tuple[Wanted, ...] | None = None
    """None: nothing is deleted."""
    unused_s: float = 86400.0
    """Time since the last recorded use after which a model may be deleted."""
    parallel: int = 4
    retry_s: float = 600.0
    lease_s: float = 60.0
    limit: int | None = None
    """Bytes that ``into`` may hold; None: as many as its file system."""


class Fetch:
    """One run of the program."""

    def __init__(self, settings: Settings, progress: Progress, stopped: threading.Event, log: Callable[[str], None]) -> None:
        self._settings = settings
        self._progress = progress
        self._stopped = stopped
        self._log = log
        self._waited_for: str | None = None

    def run(self) -> str:
        """Returns one sentence that says what was done. Raises FetchError."""
        settings = self._settings
        with storage_errors(settings.into):
            if settings.user and settings.models:
                engine_cache.prepare(settings.into, settings.user, self._log)
            fetched = self._fetch_all([Place(settings.into, wanted) for wanted in dict.fromkeys(settings.models)])
            if settings.user and settings.keep is not None:
                kept = {*settings.keep, *settings.models}
                prune(settings.into, settings.user, kept, settings.unused_s, lambda place: self._lock(place, wait=False), self._log)
        return fetched

    def _fetch_all(self, places: Sequence[Place]) -> str:
        patterns, names = self._settings.patterns, ", ".join(str(wanted) for wanted in self._settings.models)
        hub = Hub()
        if self._are_present(places):
            return f"{names} already in {self._settings.into}"
        if hub.offline:
            missing = ", ".join(str(place.wanted) for place in places if not is_present(place, patterns))
            raise FetchError(
                FetchReason.WEIGHTS_MISSING,
                f"{missing} not (completely) in {self._settings.into}, and HF_HUB_OFFLINE forbids to fetch it. Fetch it there with "
                f"dflash-fetch from a place with access, or copy it to {places[0].parent.parent}/OWNER--NAME/COMMIT",
            )
        patience = Patience(self._settings.retry_s, self._stopped, hub.endpoint)
        with ExitStack() as locks:
            held = []
            for place in sorted(places, key=lambda place: str(place.wanted)):  # One order, so that two processes never wait crosswise.
                lock = self._lock(place)
                locks.enter_context(lock)
                held.append(lock)
                self._record(place)
            self._fetch_locked(hub, patience, [place for place in places if not is_present(place, patterns)], held)
        return f"{names} in {self._settings.into}: {in_units(self._progress.downloaded)} downloaded"

    def _fetch_locked(self, hub: Hub, patience: Patience, places: Sequence[Place], held: Sequence[Lock]) -> None:
        listed: list[tuple[Place, list[File]]] = []
        for place in places:
            [everything] = run_all([partial(self._list, hub, patience, place.wanted)], 1, self._stopped)
            files = self._settings.patterns.select(everything)
            if not files:
                raise FetchError(FetchReason.MODEL_NOT_FOUND, f"No file of {place.wanted} matches the patterns. Check --allow and --ignore")
            listed.append((place, files))
        missing = sum(missing_bytes(place, files) for place, files in listed)
        check_space(self._settings.into, missing, self._settings.limit)

        def check() -> None:
            for lock in held:
                lock.check()

        download = Download(hub, self._progress, patience, self._stopped, check, self._log)
        everything_bytes = sum(file.size for _, files in listed for file in files)
        self._progress.begin(everything_bytes, everything_bytes - missing)
        for place, files in listed:
            total = sum(file.size for file in files)
            self._progress.phase = f"Fetching {place.wanted.model}"
            self._log(f"{self._progress.reading().phase}: {self._progress.reading().sentence()}")
            download.fetch(place, files, self._settings.parallel)
            check()
            self._drop_strangers(place, files)
            publish(place, Manifest(place.wanted.model, place.wanted.commit, tuple(files), self._settings.patterns))
            self._log(f"{place.wanted} is complete in {place.final} ({in_units(total)})")

    def _list(self, hub: Hub, patience: Patience, wanted: Wanted) -> list[File]:
        return patience.call(f"the file list of {wanted}", self._log, partial(hub.files, wanted))

    def _drop_strangers(self, place: Place, files: Sequence[File]) -> None:
        """Deletes staged files that an earlier run with other patterns has left."""
        wanted = {place.files / file.path for file in files}
        for path in [found for found in place.files.rglob("*") if found.is_file() and found not in wanted]:
            path.unlink()

    def _are_present(self, places: Sequence[Place]) -> bool:
        """Returns whether nothing has to be fetched, and records the use. It is looked at again under the lock: a model may be deleted."""
        if not all(is_present(place, self._settings.patterns) for place in places):
            return False
        if self._settings.user is None:
            return True
        for place in places:
            try:
                with self._lock(place):
                    self._record(place)
                    if not is_present(place, self._settings.patterns):
                        return False
                    remove(place.partial)  # Left by a process that was killed right after it had published.
            except OSError:
                continue  # Read-only storage: nobody deletes there either.
        return True

    def _record(self, place: Place) -> None:
        if self._settings.user is not None:
            record(place, self._settings.user)

    def _lock(self, place: Place, *, wait: bool = True) -> Lock:
        return Lock(place.lock, stale_s=self._settings.lease_s, wait=wait, waiting=self._waits_for, stopped=self._stopped.is_set)

    def _waits_for(self, owner: str) -> None:
        """Logs each owner once: it logs its own progress."""
        if owner != self._waited_for:
            self._waited_for = owner
            self._log(f"Waits for {owner}, which fetches the same model")
