"""How the benchmark turns metrics pages and audit events into numbers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.readings import Page, delays, distribution, done, histogram_quantile

PAGE = """\
# TYPE seconds histogram
seconds_bucket{le="0.01"} 10
seconds_bucket{le="0.1"} 30
seconds_bucket{le="+Inf"} 40
seconds_count 40
seconds_sum 5.5
# TYPE requests_total counter
requests_total{verb="get",code="200"} 3
requests_total{verb="get",code="404"} 4
"""


def event(verb: str, resource: str, name: str, second: float, code: int = 200, **ref: str) -> dict[str, Any]:
    """A request that came at ``second`` and was answered 0.125 s later."""
    return {
        "verb": verb,
        "objectRef": {"resource": resource, "name": name, **ref},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{second:09.6f}Z",
        "stageTimestamp": f"2026-01-01T00:00:{second + 0.125:09.6f}Z",
    }


def test_a_page_gives_sums_over_labels_and_buckets() -> None:
    page = Page.parse(PAGE)
    assert page.value("requests_total", verb="get") == 7
    assert page.value("requests_total", code="404") == 4
    assert page.value("no_such_metric") == 0
    assert page.buckets("seconds") == {0.01: 10, 0.1: 30, float("inf"): 40}


@pytest.mark.parametrize(("share", "expected"), [(0.25, 0.01), (0.5, 0.055), (0.75, 0.1), (0.99, 0.1)])
def test_a_quantile_is_interpolated_and_ends_at_the_last_finite_bound(share: float, expected: float) -> None:
    assert histogram_quantile({}, Page.parse(PAGE).buckets("seconds"), share) == pytest.approx(expected)


def test_a_quantile_is_of_what_came_in_between() -> None:
    after = Page.parse(PAGE).buckets("seconds")
    assert histogram_quantile(after, after, 0.5) is None
    before = {0.01: 0.0, 0.1: 20.0, float("inf"): 30.0}
    assert histogram_quantile(before, after, 0.5) == pytest.approx(0.005)


def test_a_delay_ends_with_the_first_write_to_each_kind_of_child() -> None:
    changes = [event("patch", "dflashdeployments", "m1", 1), event("patch", "dflashdeployments", "m12", 1)]
    writes = [
        event("patch", "services", "m1", 0.5),
        event("patch", "services", "m1", 1.125),
        event("patch", "services", "m1", 9),
        event("create", "deployments", "m1-rabcdefg", 1.375),
        event("patch", "deployments", "m1-rabcdefg", 2),
        event("patch", "services", "m12", 1.75, code=409),
    ]
    assert delays(changes, writes, ["services"]) == {"m1": 0.25, "m12": None}
    assert delays(changes, writes, ["services", "deployments"]) == {"m1": 0.5, "m12": None}


def test_refused_requests_subresources_and_lists_are_no_changes() -> None:
    events = [
        event("patch", "dflashdeployments", "m1", 1, subresource="status"),
        event("patch", "dflashdeployments", "m1", 1, code=409),
        {"verb": "list", "objectRef": {"resource": "dflashdeployments"}, "responseStatus": {"code": 200}},
        event("patch", "dflashdeployments", "m2", 1),
    ]
    assert [item["objectRef"]["name"] for item in done(events, ["dflashdeployments"])] == ["m2"]


def test_a_distribution_of_nothing_has_no_numbers() -> None:
    assert distribution([]) == {"count": 0, "p50_s": None, "p99_s": None, "max_s": None}
    assert distribution([0.1, 0.3, 0.2]) == {"count": 3, "p50_s": 0.2, "p99_s": 0.3, "max_s": 0.3}
