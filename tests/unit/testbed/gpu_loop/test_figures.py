"""Figures of clients and of the product."""

from __future__ import annotations

import pytest

from testbed.gpu_loop.clients import Parts, Words, client_figures, difference_percent
from testbed.gpu_loop.product import gauges, predicted
from testbed.traffic.mix import Mix
from testbed.traffic.report import Completion, Log

PAGE = """\
# TYPE dflash_tuner_predicted_tokens_per_second gauge
dflash_tuner_predicted_tokens_per_second{namespace="default",deployment="loop",block_size="8"} 415.0
dflash_tuner_predicted_tokens_per_second{namespace="default",deployment="loop",block_size="16"} 380.0
dflash_tuner_predicted_tokens_per_second{namespace="default",deployment="other",block_size="16"} 1.0
# TYPE dflash_tuner_input gauge
dflash_tuner_input{namespace="default",deployment="loop",name="concurrency"} 9.0
# TYPE dflash_leader gauge
dflash_leader{identity="a"} 1.0
"""


def test_the_parts_of_streams_in_a_window_give_step_time_and_tokens() -> None:
    parts = Parts([(9.0, 5.0, 99), (11.0, 0.02, 6), (12.0, 0.04, 4), (21.0, 5.0, 99)])
    figures = parts.between(10.0, 20.0)
    assert figures["gap_mean_s"] == pytest.approx(0.03)
    assert figures["tokens_per_part"] == 5.0
    assert figures["seconds_per_token"] == pytest.approx(0.006)
    assert parts.between(13.0, 20.0) == {}


def test_a_request_that_lies_partly_in_the_window_counts_with_that_share() -> None:
    log = Log([Completion("x", 0.0, 10.0, 100), Completion("x", 10.0, 12.0, 100)])
    figures = client_figures(log, Parts(), began_s=1000.0, start=1005.0, end=1011.0)
    assert figures["tokens_per_second"] == pytest.approx((50 + 50) / 6)
    assert figures["concurrency"] == pytest.approx(1.0)
    of_two = client_figures(log, Parts(), began_s=1000.0, start=1005.0, end=1011.0, replicas=2)
    assert (of_two["tokens_per_second"], of_two["concurrency"]) == (figures["tokens_per_second"] / 2, 0.5)


def test_prompts_have_the_asked_number_of_words_and_no_two_are_the_same() -> None:
    words = Words(Mix({"made": 1.0}, max_tokens=5, prompt_tokens=7))
    prompts = [words.next().prompt for _ in range(50)]
    assert {len(prompt.split()) for prompt in prompts} == {7}
    assert len(set(prompts)) == 50


def test_predictions_are_those_of_this_deployment_by_block_size() -> None:
    found = gauges(PAGE, "loop")
    assert predicted({"gauges": found}) == {8: 415.0, 16: 380.0}
    assert found["tuner_input concurrency"] == 9.0
    assert "leader" not in " ".join(found)


@pytest.mark.parametrize(("shown", "truth", "expected"), [(102.0, 100.0, 2.0), (None, 1.0, None), (1.0, None, None), (1.0, 0.0, None)])
def test_a_difference_needs_both_figures(shown: float | None, truth: float | None, expected: float | None) -> None:
    assert difference_percent(shown, truth) == (None if expected is None else pytest.approx(expected))
