"""Failures that a command reports in one sentence, and the exit statuses."""

from __future__ import annotations

OK = 0
NEGATIVE = 1
"""The command worked and its answer is no: a file is invalid, something differs, a check failed."""
USAGE = 2
"""Arguments or files that cannot be used."""
CLUSTER = 3
"""The cluster cannot be reached, refuses the request, or has no such object."""
DEFECT = 70
"""An error that the command does not expect."""
INTERRUPTED = 130

MEANINGS = {
    OK: "it worked, and the answer is yes",
    NEGATIVE: "it worked, and the answer is no: a file is invalid, something differs, a check failed",
    USAGE: "an argument or a file cannot be used",
    CLUSTER: "the cluster cannot be reached, refuses the request, or has no such object",
    DEFECT: "a defect of this program",
    INTERRUPTED: "interrupted",
}
"""By exit status."""


class Failure(Exception):
    """What went wrong, in a sentence without a full stop, and what to do about it."""

    def __init__(self, message: str, remedy: str = "", *, status: int = USAGE) -> None:
        super().__init__(f"{message}. {remedy}" if remedy else message)
        self.status = status
