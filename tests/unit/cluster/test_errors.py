"""Errors told apart by what the caller can do."""

from __future__ import annotations

import json

import pytest

from dflash_controller.cluster.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unavailable,
    error_of,
)


def status(reason: str, message: str = "why") -> str:
    return json.dumps({"kind": "Status", "reason": reason, "message": message})


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (404, status("NotFound"), NotFound),
        (409, status("Conflict"), Conflict),
        (409, status("AlreadyExists"), AlreadyExists),
        (410, status("Expired"), Gone),
        (403, status("Forbidden"), Forbidden),
        (401, status("Unauthorized"), Forbidden),
        (422, status("Invalid"), Invalid),
        (400, status("BadRequest"), Invalid),
        (429, status("TooManyRequests"), Unavailable),
        (500, status("InternalError"), Unavailable),
        (
            500,
            status("", "failed to create typed patch object (ns/demo; /v1, Kind=Service): .spec.x: field not declared in schema"),
            Invalid,
        ),
        (503, "<html>no upstream</html>", Unavailable),
        (502, None, Unavailable),
        (418, status("Teapot"), ApiError),
    ],
)
def test_the_answer_decides_the_error(code: int, body: str | None, expected: type[ApiError]) -> None:
    error = error_of(code, body)
    assert type(error) is expected
    assert error.code == code


def test_the_message_is_the_servers_or_the_beginning_of_what_a_proxy_said() -> None:
    assert str(error_of(422, status("Invalid", "spec.x: wrong"))) == "422 Invalid: spec.x: wrong"
    assert len(error_of(502, "x" * 5000).message) == 500
    assert error_of(500, "[1]").message == "[1]"
