"""The audit log is read as one, whatever files it was cut into."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.audit import position, read_events


def line(number: int) -> str:
    return json.dumps({"user": {"username": "me"}, "verb": "get", "number": number}) + "\n"


def numbers(log: Path, since: int = 0) -> list[int]:
    return [event["number"] for event in read_events(log, since, user="me", verbs={"get"})]


def test_a_log_that_was_cut_is_read_across_the_cut(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(line(1) + line(2))
    mark = position(log)
    log.write_text(line(1) + line(2) + line(3))
    log.rename(tmp_path / "audit-2026-11-28T07-00-00.000.log")
    log.write_text(line(4))
    assert numbers(log) == [1, 2, 3, 4]
    assert numbers(log, mark) == [3, 4]
    later = position(log)
    log.write_text(line(4) + line(5))
    assert numbers(log, later) == [5]


def test_lines_that_are_half_written_at_either_end_are_left_out(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(line(1) + line(2)[:10])
    mark = position(log)
    log.write_text(line(1) + line(2) + line(3) + line(4)[:7])
    assert numbers(log, mark) == [3]
    assert numbers(log) == [1, 2, 3]
