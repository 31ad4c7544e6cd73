"""Warnings of engines, each kind once."""

from __future__ import annotations

from testbed.gpu_loop.engine_log import LogWarning, merged, warnings_of

VLLM = """\
(APIServer pid=12) INFO 11-28 12:34:56 [api_server.py:99] fallback is only a word here
(EngineCore_DP0 pid=77) WARNING 11-28 12:34:57 [config.py:12] Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE
(EngineCore_DP0 pid=78) WARNING 11-28 12:35:57 [config.py:12] Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE
(EngineCore_DP0 pid=78) ERROR 11-28 12:35:58 [core.py:5] set aside 8.06 GiB
(EngineCore_DP0 pid=78) ERROR 11-28 12:35:59 [core.py:5] set aside 7.5 GiB
/usr/lib/python3/x.py:3: FutureWarning: `torch.x` is gone soon
""".splitlines()
SGLANG = """\
[2026-11-28 12:34:56] max_running_requests is capped to 16 by the mamba state cache (max_mamba_cache_size=83)
[2026-11-28 12:34:57] Decode batch, #running-req: 16
""".splitlines()


def test_lines_that_differ_in_numbers_only_are_one_warning() -> None:
    found = warnings_of(VLLM, levels=True)
    assert [(warning.text.partition("] ")[2] or warning.text, warning.count) for warning in found] == [
        ("Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE", 2),
        ("set aside 8.06 GiB", 2),
        ("/usr/lib/python3/x.py:3: FutureWarning: `torch.x` is gone soon", 1),
    ]


def test_an_engine_without_levels_is_searched_for_words() -> None:
    (found,) = warnings_of(SGLANG, levels=False)
    assert found.text == "max_running_requests is capped to 16 by the mamba state cache (max_mamba_cache_size=83)"
    assert warnings_of(SGLANG, levels=True) == []


def test_the_same_warning_of_two_engines_counts_together() -> None:
    assert merged([[LogWarning("took 3 s")], [LogWarning("took 4 s", 2), LogWarning("other")]]) == [
        LogWarning("took 3 s", 3),
        LogWarning("other"),
    ]
