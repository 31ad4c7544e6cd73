"""Types of command-line arguments that the benchmarks share."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Returns a whole number above 0. Raises argparse.ArgumentTypeError, from which argparse makes a message that names the option."""
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:9]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000000")
    return int(text)
