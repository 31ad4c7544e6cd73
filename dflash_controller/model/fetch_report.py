"""What the program that fetches weights reports: one JSON object as a container's termination message, and its exit code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

LONGEST_LINE = 3000
"""Bytes of a report. Kubernetes keeps 4096 bytes of a termination message, and cuts JSON that is longer into something unreadable."""


class FetchReason(StrEnum):
    """Why a fetch ended. The value is stable: the operator reads it and users may write alerts for it."""

    FETCHED = "Fetched"
    UNAUTHORIZED = "Unauthorized"
    GATED = "GatedModel"
    MODEL_NOT_FOUND = "ModelNotFound"
    REVISION_NOT_FOUND = "RevisionNotFound"
    NO_SPACE = "NoSpace"
    HASH_MISMATCH = "HashMismatch"
    HUB_UNREACHABLE = "HubUnreachable"
    WEIGHTS_MISSING = "WeightsMissing"
    INCOMPLETE_MODEL = "IncompleteModel"
    STORAGE_NOT_WRITABLE = "StorageNotWritable"
    LOCK_LOST = "LockLost"
    INTERRUPTED = "Interrupted"
    UNEXPECTED = "UnexpectedError"


EXIT_CODES = {
    FetchReason.FETCHED: 0,
    FetchReason.UNEXPECTED: 1,
    FetchReason.UNAUTHORIZED: 10,
    FetchReason.GATED: 11,
    FetchReason.MODEL_NOT_FOUND: 12,
    FetchReason.REVISION_NOT_FOUND: 13,
    FetchReason.NO_SPACE: 14,
    FetchReason.HASH_MISMATCH: 15,
    FetchReason.HUB_UNREACHABLE: 16,
    FetchReason.WEIGHTS_MISSING: 17,
    FetchReason.INCOMPLETE_MODEL: 18,
    FetchReason.STORAGE_NOT_WRITABLE: 19,
    FetchReason.LOCK_LOST: 20,
    FetchReason.INTERRUPTED: 143,
}
"""2 is left to wrong arguments; 143 is what a shell reports for SIGTERM."""


@dataclass(frozen=True, slots=True)
class FetchReport:
    """The end of a fetch. ``bytes`` were downloaded in ``seconds``; what was there before is not counted.

    ``rate`` are bytes per second while bytes arrived; 0 if none did, or if an earlier release has written the report.
    """

    reason: FetchReason
    message: str
    bytes: int = 0
    seconds: float = 0.0
    rate: int = 0

    def to_json(self) -> str:
        """Returns one line of at most LONGEST_LINE bytes."""
        message = self.message
        while True:
            line = json.dumps({**asdict(self), "message": message}, ensure_ascii=False)
            if len(line.encode()) <= LONGEST_LINE:
                return line
            message = message[: len(message) * 3 // 4 - 1] + "…"


def parse(text: str | None) -> FetchReport | None:
    """Returns the report in a termination message; None if it holds none (another program, an older release, a cut message)."""
    try:
        found = json.loads(text or "")
        return FetchReport(
            FetchReason(found["reason"]),
            str(found["message"]),
            int(found.get("bytes", 0)),
            float(found.get("seconds", 0.0)),
            int(found.get("rate", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
