"""What the program measures of its own download."""

from __future__ import annotations

from dflash_controller.fetch.progress import WINDOW_S, Progress


def test_the_average_is_of_the_time_in_which_bytes_arrived() -> None:
    now = [0.0]
    progress = Progress(lambda reading: None, clock=lambda: now[0])
    now[0] = 500.0  # It waits for another pod.
    progress.begin(150, 0)
    assert progress.average() == 0.0
    now[0] = 510.0
    progress.received(100)
    assert progress.average() == 10.0
    now[0] = 2000.0  # It reads what an earlier run has left.
    progress.received(50)
    assert progress.average() == 150 / (10 + WINDOW_S)
