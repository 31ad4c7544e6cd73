"""The one exception that ends a fetch with a reason, an exit code and a remedy."""

from __future__ import annotations

from dflash_controller.model.fetch_report import EXIT_CODES, FetchReason


class FetchError(Exception):
    """``str()`` is the whole message: what is wrong, then what to do."""

    def __init__(self, reason: FetchReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.reason]
