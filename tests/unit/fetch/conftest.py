"""What several files of the fetch tests use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """An empty storage."""
    made = tmp_path / "storage"
    made.mkdir()
    return made
