"""Which moments of a watch stream count as a broken budget."""

from __future__ import annotations

from testbed.pod_watch import Moment, breaks


def moments(*counts: tuple[int, int]) -> list[Moment]:
    return [Moment(number, f"change {number}", serving, held) for number, (serving, held) in enumerate(counts)]


def test_a_start_breaks_nothing() -> None:
    assert breaks(moments((0, 1), (0, 3), (1, 3), (2, 3), (3, 3)), least=2, most=3) == []


def test_too_few_serving_count_once_enough_have_served() -> None:
    broken = breaks(moments((1, 3), (2, 3), (1, 2), (2, 3), (0, 1)), least=2, most=3)
    assert [moment.version for moment in broken] == [2, 4]


def test_too_many_pods_count_from_the_beginning() -> None:
    assert [moment.held for moment in breaks(moments((0, 4), (3, 4), (3, 5)), least=2, most=4)] == [5]
