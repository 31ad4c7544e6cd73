"""The report: comparisons and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.gpu_loop.report import Report, best_blocks, compared, markdown


def level(block: int, clients: int, speed: float, seen: float = 1.0, **product: float) -> dict[str, Any]:
    return {
        "block": block,
        "clients": clients,
        "client": {"tokens_per_second": speed, "concurrency": float(clients), "seconds_per_token": 0.002},
        "product": product,
        "told": {"gauges": {"tuner_input concurrency": seen, "tuner_recommended_block_size": 8.0}, "tuning": {}},
        "predicted": {"8": 1.1 * speed, "16": speed},
        "imposed_acceptance": 5.0,
        "failed": 0,
    }


def test_the_product_is_compared_with_clients_and_with_the_imposed_acceptance() -> None:
    off = compared(level(16, 8, 1000.0, acceptance_length=5.05, tokens_per_second=1020.0, concurrency=8.0, step_time_s=0.0101))
    assert off["acceptance_length"] == pytest.approx(1.0)
    assert off["tokens_per_second"] == pytest.approx(2.0)
    assert off["concurrency"] == pytest.approx(0.0)
    assert off["step_time_s"] == pytest.approx(0.0)  # 5.05 tokens of 2 ms each
    assert compared(level(16, 8, 1000.0))["step_time_s"] is None


def test_the_fastest_block_is_named_where_both_were_measured() -> None:
    levels = [level(16, 1, 380.0), level(8, 1, 415.0), level(16, 8, 1855.0)]
    assert best_blocks(levels) == {1: "8 (+9.2 %)"}


def test_tables_name_every_level_and_compare_predictions_at_the_load_that_the_tuner_saw() -> None:
    content: dict[str, Any] = {
        "began": "now",
        "setup": {"engine": "vllm"},
        "phases": {"load at block 16": {"levels": [level(16, 1, 380.0), level(8, 1, 415.0)]}},
    }
    text = markdown(content)
    assert "| 8 | 1 | 415 |" in text
    assert "8: 418 (+0.7 %), 16: 380 (+0.0 %)" in text
    content["phases"]["load at block 16"]["levels"][0]["told"]["gauges"]["tuner_input concurrency"] = 4.0
    assert "8: 418 (–), 16: 380 (–)" in markdown(content)


def test_each_phase_is_on_disk_as_soon_as_it_is_added(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.add("serve", {"ready": True})
    assert json.loads((tmp_path / "report.json").read_text())["phases"] == {"serve": {"ready": True}}
    assert "phases done: serve" in (tmp_path / "report.md").read_text()


def test_a_phase_that_was_left_out_is_not_said_to_be_done() -> None:
    content = {"began": "now", "phases": {"serve": {"ready": True}, "auto": {"skipped": "3 s of the budget were left, and it needs 150 s"}}}
    assert "* phases done: serve\n" in markdown(content)
