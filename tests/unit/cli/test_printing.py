"""Tables: commits are cut where they still differ, lines are not folded in a pipe."""

from __future__ import annotations

import pytest

from dflash_controller.cli import printing
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


def test_in_a_pipe_no_line_is_folded_and_none_ends_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printing.table("name", "message")
    rows.add_row("a-long-name", "short")
    rows.add_row("b", " ".join(["long"] * 100))
    printing.show("before", rows)
    assert capsys.readouterr().out.splitlines() == [
        "before",
        "NAME         MESSAGE",
        "a-long-name  short",
        "b            " + " ".join(["long"] * 100),
    ]
