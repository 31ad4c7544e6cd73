"""Tables: commits are cut where they still differ."""

from __future__ import annotations

import pytest

from dflash_controller.cli.printing import distinct_length


@pytest.mark.parametrize(
    ("commits", "length"),
    [
        ([], 12),
        ([None, "main"], 12),
        (["a" * 40, "b" * 40, "a" * 40], 12),
        (["a" * 20 + "b" * 20, "a" * 20 + "c" * 20], 21),
        (["0" * 39 + "1", "0" * 39 + "2", None], 40),
    ],
)
def test_commits_are_cut_where_they_still_differ(commits: list[str | None], length: int) -> None:
    assert distinct_length(commits) == length
