"""When the maintenance window is open: by hand at the edges, and against an evaluation minute by minute."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dflash_controller.api.defaults import MaintenanceWindow
from dflash_controller.planning.rollout.maintenance_window import LOOK_AHEAD_STARTS, Opening, opening

MINUTE = timedelta(minutes=1)


def at(text: str) -> datetime:
    """A time in UTC, or with the offset written."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def closed_until(text: str | None) -> Opening:
    return Opening(open=False, changes_at=at(text).astimezone(UTC) if text else None)


def open_until(text: str | None) -> Opening:
    return Opening(open=True, changes_at=at(text).astimezone(UTC) if text else None)


NIGHTS = MaintenanceWindow("0 22 * * 1-5", 4 * 3600, "Europe/Berlin")


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-01-05T21:59:59+01:00", closed_until("2026-01-05T22:00+01:00")),
        ("2026-01-05T22:00:00+01:00", open_until("2026-01-06T02:00+01:00")),
        ("2026-01-06T01:59:59.999999+01:00", open_until("2026-01-06T02:00+01:00")),
        ("2026-01-06T02:00:00+01:00", closed_until("2026-01-06T22:00+01:00")),
        ("2026-01-09T23:00:00+01:00", open_until("2026-01-10T02:00+01:00")),
        ("2026-01-10T02:00:00+01:00", closed_until("2026-01-12T22:00+01:00")),
    ],
    ids=["before", "start", "last moment", "end", "Friday night", "over the weekend"],
)
def test_a_window_of_weekday_nights(now: str, expected: Opening) -> None:
    assert opening(NIGHTS, at(now)) == expected


def test_the_time_zone_of_now_does_not_matter() -> None:
    now = at("2026-01-06T00:30:00+01:00")
    assert opening(NIGHTS, now) == opening(NIGHTS, now.astimezone(UTC)) == opening(NIGHTS, now.astimezone(ZoneInfo("Asia/Tokyo")))


def test_a_window_lasts_its_duration_on_the_clock_over_both_changes_of_clocks() -> None:
    window = MaintenanceWindow("0 22 * * 6", 8 * 3600, "Europe/Berlin")
    assert opening(window, at("2026-03-28T23:00+01:00")) == open_until("2026-03-29T07:00+02:00")
    assert opening(window, at("2026-10-24T23:00+02:00")) == open_until("2026-10-25T05:00+01:00")


def test_a_start_in_the_skipped_hour_is_made_up_for_when_the_hour_ends() -> None:
    window = MaintenanceWindow("30 2 * * *", 3600, "Europe/Berlin")
    assert opening(window, at("2026-03-29T01:59+01:00")) == closed_until("2026-03-29T03:00+02:00")
    assert opening(window, at("2026-03-29T03:00+02:00")) == open_until("2026-03-29T04:00+02:00")


def test_a_start_in_the_doubled_hour_counts_the_first_time_only() -> None:
    window = MaintenanceWindow("30 2 * * *", 1800, "Europe/Berlin")
    assert opening(window, at("2026-10-25T02:15+02:00")) == closed_until("2026-10-25T02:30+02:00")
    assert opening(window, at("2026-10-25T02:45+02:00")) == open_until("2026-10-25T02:00+01:00")
    assert opening(window, at("2026-10-25T02:15+01:00")) == closed_until("2026-10-26T02:30+01:00")
    assert opening(window, at("2026-10-25T02:45+01:00")) == closed_until("2026-10-26T02:30+01:00")


def test_a_window_is_seen_to_be_open_in_the_second_pass_of_the_hour_it_began_in() -> None:
    window = MaintenanceWindow("30 2 * * *", 3600, "Europe/Berlin")
    assert opening(window, at("2026-10-25T02:15+01:00")) == open_until("2026-10-25T02:30+01:00")


def test_an_hourly_schedule_starts_in_both_passes_of_the_doubled_hour() -> None:
    window = MaintenanceWindow("0 * * * *", 600, "Europe/Berlin")
    assert opening(window, at("2026-10-25T02:05+02:00")) == open_until("2026-10-25T02:10+02:00")
    assert opening(window, at("2026-10-25T02:30+02:00")) == closed_until("2026-10-25T02:00+01:00")


def test_windows_that_reach_into_the_next_are_one() -> None:
    window = MaintenanceWindow("0 0 * * 1-5", 24 * 3600, "Etc/UTC")
    assert opening(window, at("2026-01-05T12:00")) == open_until("2026-01-10T00:00")
    assert opening(window, at("2026-01-10T00:00")) == closed_until("2026-01-12T00:00")


@pytest.mark.parametrize("schedule", ["* * * * *", "0 * * * *", "0 */12 * * *", "0 0 * * *"])
def test_a_window_as_long_as_its_period_is_always_open(schedule: str) -> None:
    assert opening(MaintenanceWindow(schedule, 24 * 3600, "Etc/UTC"), at("2026-05-05T12:34")) == open_until(None)


def test_the_end_is_found_when_it_is_within_the_starts_looked_at() -> None:
    at_midnight = at("2026-01-05T00:00")  # a Monday
    half_a_day = MaintenanceWindow("* 0-11 * * *", 60, "Etc/UTC")
    assert 720 < LOOK_AHEAD_STARTS < 1440
    assert opening(half_a_day, at_midnight) == open_until("2026-01-05T12:00")
    assert opening(MaintenanceWindow("* * * * 1", 60, "Etc/UTC"), at_midnight) == open_until(None)


@pytest.mark.parametrize("schedule", ["0 0 30 2 *", "0 0 31 4,6,9,11 *"])
def test_a_window_on_a_day_there_is_not_never_opens(schedule: str) -> None:
    assert opening(MaintenanceWindow(schedule, 3600, "Europe/Berlin"), at("2026-01-01T00:00")) == closed_until(None)


def test_the_next_leap_day_is_found_years_ahead() -> None:
    assert opening(MaintenanceWindow("0 0 29 2 *", 3600, "Etc/UTC"), at("2026-01-01T00:00")) == closed_until("2028-02-29T00:00")


# An evaluation of its own, in the plainest way: every minute is held against every field.

Schedule = tuple[set[int] | None, ...]
"""Minute, hour, day, month and weekday; None is ``*``."""

FIELDS = {"minute": range(60), "hour": range(24), "day": range(1, 32), "month": range(1, 13), "weekday": range(7)}


def matches_day(schedule: Schedule, day: date) -> bool:
    """Day of month and day of week both, or either of them where neither is ``*``."""
    days, months, weekdays = schedule[2:]
    if months is not None and day.month not in months:
        return False
    by_day, by_weekday = days is None or day.day in days, weekdays is None or day.isoweekday() % 7 in weekdays
    return (by_day or by_weekday) if days is not None and weekdays is not None else (by_day and by_weekday)


@cache
def minutes_between(zone: ZoneInfo, first: datetime, last: datetime) -> list[tuple[datetime, list[datetime]]]:
    """Every minute in UTC, with the minutes by which the wall clock comes to it: one, or with it those that are skipped."""
    found = []
    wall = (first - MINUTE).astimezone(zone).replace(tzinfo=None)
    for count in range((last - first) // MINUTE + 1):
        moment = first + count * MINUTE
        before, wall = wall, moment.astimezone(zone).replace(tzinfo=None)
        skipped = max(0, (wall - before) // MINUTE - 1)
        found.append((moment, [wall - back * MINUTE for back in range(skipped, -1, -1)]))
    return found


def starts(schedule: Schedule, zone: ZoneInfo, first: datetime, last: datetime) -> Iterator[datetime]:
    minutes, hours = schedule[:2]
    by_the_wall = minutes is not None and hours is not None
    seen: set[datetime] = set()
    for moment, walls in minutes_between(zone, first, last):
        due = {
            wall
            for wall in (walls if by_the_wall else walls[-1:])
            if (hours is None or wall.hour in hours) and (minutes is None or wall.minute in minutes) and matches_day(schedule, wall.date())
        }
        if due - seen:
            yield moment
        if by_the_wall:
            seen |= due


def written(schedule: Schedule) -> str:
    return " ".join("*" if field is None else ",".join(map(str, sorted(field))) for field in schedule)


def field(name: str) -> st.SearchStrategy[set[int] | None]:
    return st.none() | st.sets(st.sampled_from(FIELDS[name]), min_size=1, max_size=4)


def expected(begins: list[datetime], length: timedelta, now: datetime) -> tuple[bool, datetime | None]:
    """Open, and the change, as far as the evaluated starts tell."""
    spans: list[list[datetime]] = []
    for begin in begins:
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = begin + length
        else:
            spans.append([begin, begin + length])
    index = bisect_right(spans, now, key=lambda span: span[0]) - 1
    if index >= 0 and now < spans[index][1]:
        return True, spans[index][1]
    return False, spans[index + 1][0] if index + 1 < len(spans) else None


CLOCK_CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/Santiago", "2026-04-05T03:00"),  # at midnight, back into the day before
    ("America/Santiago", "2026-09-06T04:00"),  # the day begins at 01:00
    ("Australia/Lord_Howe", "2026-04-04T15:00"),  # by half an hour
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("Etc/UTC", "2026-06-01T00:00"),
]


@settings(max_examples=40, deadline=None)
@given(
    place=st.sampled_from(CLOCK_CHANGES),
    schedule=st.tuples(
        field("minute"), st.none() | st.sets(st.sampled_from([0, 1, 2, 3, 23]), min_size=1), st.none(), st.none(), st.none()
    ),
    minutes=st.integers(1, 30 * 60),
    samples=st.lists(st.integers(-36 * 60, 12 * 60), min_size=8, max_size=8),
)
def test_around_changes_of_clocks_it_agrees_with_an_evaluation_minute_by_minute(
    place: tuple[str, str], schedule: Schedule, minutes: int, samples: list[int]
) -> None:
    zone, change = ZoneInfo(place[0]), at(place[1])
    # With clocks that move by half an hour CronSim loses half an hour a year of expressions that follow real time.
    assume(place[0] != "Australia/Lord_Howe" or (schedule[0] is not None and schedule[1] is not None))
    length = minutes * MINUTE
    begins = list(starts(schedule, zone, change - timedelta(days=3, hours=6), change + timedelta(days=3)))
    window = MaintenanceWindow(written(schedule), minutes * 60, place[0])
    for sample in samples:
        now = change + sample * MINUTE
        is_open, changes_at = expected(begins, length, now)
        found = opening(window, now)
        assert found.open == is_open, now
        if changes_at and changes_at < change + timedelta(days=2) and (found.changes_at or len(begins) < LOOK_AHEAD_STARTS):
            assert found.changes_at == changes_at, now


@settings(max_examples=25, deadline=None)
@given(
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Etc/UTC"]),
    schedule=st.tuples(*map(field, FIELDS)).filter(lambda fields: fields[0] is not None and fields[1] is not None),
    hours=st.integers(1, 72),
    samples=st.lists(st.integers(0, 365 * 24 * 60), min_size=20, max_size=20),
)
def test_over_a_year_it_agrees_with_every_start_of_the_year(zone: str, schedule: Schedule, hours: int, samples: list[int]) -> None:
    minute, hour = schedule[:2]
    assert minute is not None
    assert hour is not None
    first, length, place = date(2025, 12, 1), timedelta(hours=hours), ZoneInfo(zone)
    days = [first + timedelta(days=count) for count in range(430)]
    walls = [datetime(d.year, d.month, d.day, h, m) for d in days if matches_day(schedule, d) for h in hour for m in minute]
    # fold 0 is the first pass of a doubled hour; for a skipped time it is as many minutes after the change, made up for at the change.
    begins = sorted({made_up(wall, place) for wall in walls})
    window = MaintenanceWindow(written(schedule), hours * 3600, zone)
    if not begins:
        return
    for sample in samples:
        now = datetime(2026, 1, 1, tzinfo=UTC) + sample * MINUTE
        is_open, changes_at = expected(begins, length, now)
        found = opening(window, now)
        assert found.open == is_open, now
        looked_at = sum(now < begin <= changes_at for begin in begins) if changes_at else 0
        if changes_at and changes_at < datetime(2027, 1, 15, tzinfo=UTC) and looked_at < LOOK_AHEAD_STARTS:
            assert found.changes_at == changes_at, now


def made_up(wall: datetime, zone: ZoneInfo) -> datetime:
    moment = wall.replace(tzinfo=zone).astimezone(UTC)
    while moment.astimezone(zone).replace(tzinfo=None) > wall:  # skipped: the first minute after the gap
        earlier = moment - MINUTE
        if earlier.astimezone(zone).replace(tzinfo=None) < wall:
            break
        moment = earlier
    return moment


def test_the_reference_knows_what_it_compares_with() -> None:
    """The evaluation itself, by hand: skipped, doubled, and real time."""
    berlin = ZoneInfo("Europe/Berlin")
    half_past_two: Schedule = ({30}, {2}, None, None, None)
    spring = list(starts(half_past_two, berlin, at("2026-03-28T12:00"), at("2026-03-30T12:00")))
    assert spring == [at("2026-03-29T01:00"), at("2026-03-30T00:30")]
    assert made_up(datetime(2026, 3, 29, 2, 30), berlin) == spring[0]
    autumn = list(starts(half_past_two, berlin, at("2026-10-24T12:00"), at("2026-10-25T12:00")))
    assert autumn == [at("2026-10-25T00:30")]
    hourly = list(starts(({0}, None, None, None, None), berlin, at("2026-10-25T00:00"), at("2026-10-25T02:00")))
    assert all(later - earlier == timedelta(hours=1) for earlier, later in pairwise(hourly))
