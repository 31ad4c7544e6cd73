"""Which phases a run still begins with the seconds that are left."""

from __future__ import annotations

import pytest

from testbed.gpu_loop.phases import PHASES, least_s


@pytest.mark.parametrize(
    ("left_s", "start_s", "begun"),
    [
        (373, 240, set(PHASES) - {"auto"}),
        (640, 240, set(PHASES)),
        (170, 3, set(PHASES)),
        (100, 240, {"serve", "load", "load again", "advise", "drain"}),
    ],
)
def test_a_phase_is_begun_where_its_engines_have_time_to_start(left_s: float, start_s: float, begun: set[str]) -> None:
    assert {name for name in PHASES if least_s(name, start_s) <= left_s} == begun
