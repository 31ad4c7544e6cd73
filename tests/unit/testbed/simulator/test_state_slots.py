"""SGLang's own division of the memory between states and keys and values."""

from __future__ import annotations

import pytest

from testbed.simulator.argv import ArgvError
from testbed.simulator.launch import Process, settings_of
from testbed.simulator.settings import EngineSettings


def sglang(*flags: str, block: int = 16, target: str = "Qwen/Qwen3.5-9B", product: str = "NVIDIA-H100-80GB-HBM3") -> EngineSettings:
    """SGLang that is asked for 32 requests."""
    drafter = f"z-lab/{target.split('/')[1]}-DFlash"
    command = ["python3", "-m", "sglang.launch_server", "--model-path", target, "--max-running-requests=32", *flags]
    command += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", drafter, f"--speculative-num-draft-tokens={block}"]
    return settings_of(Process(tuple(command), {}, "lmsysorg/sglang:v0.5.17", product=product))


def test_a_hybrid_that_divides_its_memory_itself_serves_half_of_what_is_asked_for() -> None:
    found = sglang()
    assert found.state_slots == pytest.approx(83, abs=1)
    assert found.served == 16


@pytest.mark.parametrize(
    ("flags", "served"),
    [
        (("--mamba-full-memory-ratio=14",), 32),
        (("--max-mamba-cache-size=160",), 32),
        (("--max-mamba-cache-size=80",), 16),
        (("--mamba-ssm-dtype=bfloat16",), 32),
        (("--mem-fraction-static=0.6",), 9),
    ],
    ids=["the ratio", "slots", "fewer slots", "half the state", "less memory"],
)
def test_what_the_log_of_sglang_proposes_helps(flags: tuple[str, ...], served: int) -> None:
    assert sglang(*flags).served == served


def test_a_smaller_block_and_a_larger_accelerator_hold_more() -> None:
    assert 16 < sglang(block=8).served < 32
    assert sglang(product="NVIDIA-B200").served == 32


def test_a_target_without_state_has_no_slots() -> None:
    assert sglang(target="Qwen/Qwen3-8B").state_slots == 0


def test_an_engine_whose_weights_leave_no_memory_does_not_start() -> None:
    with pytest.raises(ArgvError, match="Not enough memory"):
        sglang("--mem-fraction-static=0.3")
