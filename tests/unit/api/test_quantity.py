"""Quantities and durations as numbers."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.api.quantity import canonical_quantity, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (1, 1),
        ("1000m", 1),
        ("1Gi", 2**30),
        ("1.5G", 1_500_000_000),
        ("0.5", Decimal("0.5")),
        ("2e3", 2000),
        ("1E", 10**18),
        (".5Ki", 512),
        ("5n", Decimal("5e-9")),
    ],
)
def test_quantities(text: str | int, number: int | Decimal) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1gi", "Gi", "1e", "--1"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


def test_one_spelling_per_number() -> None:
    assert {canonical_quantity(value) for value in ("1000m", "1.0", 1, "1", "+1")} == {"1"}
    assert canonical_quantity("1Gi") == "1073741824"
    assert canonical_quantity("10") == "10"


@given(st.integers(min_value=0, max_value=10**12))
def test_canonical_is_a_fixed_point(number: int) -> None:
    assert canonical_quantity(canonical_quantity(number)) == canonical_quantity(number)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("1h30m", 5400), ("90s", 90), ("0s", 0), ("2h0m5s", 7205)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "1d", "1.5h", "5s3m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
