"""Errors of calls to the API server, distinguished by what the caller can do about them."""

from __future__ import annotations

import json
from typing import Self


class ApiError(Exception):
    """The API server refused a request or failed. ``code`` is the HTTP status, 0 without an answer; ``reason`` is metav1.Status.reason."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}" if code else message)
        self.code = code
        self.reason = reason
        self.message = message

    def about(self, what: str) -> Self:
        """Returns the same error with a message that says what it is about."""
        return type(self)(self.code, self.reason, f"{what}: {self.message}")


class NotFound(ApiError):
    """404: no such object, or no such kind."""


class Conflict(ApiError):
    """409: a precondition (resourceVersion, UID) does not hold, or another manager owns a field."""


class AlreadyExists(Conflict):
    """409 AlreadyExists: the name is taken."""


class Gone(ApiError):
    """410: the continue token of a list has expired."""


class Forbidden(ApiError):
    """401 or 403: the operator's role lacks a permission, or its token is not accepted."""


class Invalid(ApiError):
    """400, 422, or an apply that violates the schema: the object is refused, and sending it again cannot help."""


class Unavailable(ApiError):
    """No answer, 429 or 5xx: the same call may succeed later."""


class LostLeadership(Exception):
    """This process may no longer write: its Lease was not renewed in time."""


class PlanConflict(Exception):
    """The cluster has changed since the plan was made: drop the plan and make a new one."""


class WriteRefused(Exception):
    """A write of a plan was refused; what does not depend on it was carried out. ``requeue_after_s`` is the time to the next one."""

    def __init__(self, error: ApiError, requeue_after_s: float | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.requeue_after_s = requeue_after_s


_BY_CODE: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    422: Invalid,
    429: Unavailable,
}


def error_of(code: int, body: str | None) -> ApiError:
    """Returns the error for an answer with this HTTP status; ``body`` is a metav1.Status or whatever a proxy sent instead."""
    reason, message = "", (body or "").strip()
    try:
        status = json.loads(message)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        message = message[:500]
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists(code, reason, message)
    if code == 500 and "failed to create typed patch object" in message:
        # Kubernetes 1.35 answers 500 to an apply with a field its schema does not know.
        return Invalid(code, reason, message)
    return _BY_CODE.get(code, Unavailable if code >= 500 else ApiError)(code, reason, message)
