"""The serve commands that the drafters' cards print come out of their models: every option they set has the same value in ours."""

import dataclasses
import shlex
from typing import Any

import pytest

from dflash_controller.api.speculation import Fixed
from dflash_controller.engines import ENGINES
from dflash_controller.engines.releases import version
from testbed.contract.examples import B200, H100, SEEDS, request
from testbed.simulator.argv import parse
from tests.support.releases import contract_releases, floor_release

SGLANG_FIRST = """python -m sglang.launch_server --model-path {target} --speculative-algorithm DFLASH
    --speculative-draft-model-path {drafter} --speculative-num-draft-tokens 16 --tp-size 1 --attention-backend fa3
    --mem-fraction-static 0.75 --mamba-scheduler-strategy extra_buffer --trust-remote-code"""
SGLANG_RETRAIN = """python -m sglang.launch_server --model-path {target} --trust-remote-code --speculative-algorithm DFLASH
    --speculative-draft-model-path {drafter} --speculative-dflash-block-size 8 --speculative-draft-attention-backend fa4
    --attention-backend trtllm_mha --linear-attn-prefill-backend flashinfer --linear-attn-decode-backend flashinfer
    --mamba-scheduler-strategy extra_buffer --tp-size 1 --max-running-requests 32 --cuda-graph-max-bs-decode 32
    --cuda-graph-backend-prefill tc_piecewise --enable-flashinfer-allreduce-fusion --mem-fraction-static 0.8 --host 0.0.0.0 --port 30000"""
SGLANG_397B = SGLANG_RETRAIN.replace("prefill-backend flashinfer", "prefill-backend triton").replace("--tp-size 1", "--tp-size 8")
VLLM = """vllm serve {target} --attention-backend flash_attn --max-num-batched-tokens 32768
    --speculative-config '{{"method": "dflash", "model": "{drafter}", "num_speculative_tokens": 15}}'"""
OVERLAP = {"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}

# SGLang's names for one setting, and settings that a later release or the GPU no longer has
SAME = {"speculative_dflash_block_size": "speculative_num_draft_tokens"}
GONE = {
    floor_release("sglang"): "linear_attn_decode_backend",  # needs --mamba-ssm-dtype=bfloat16, which the cards do not mention
    "0.5.22": "cuda_graph_backend_prefill",  # tc_piecewise was removed
}
"""The release from which on an option is left out."""


def given(engine: str, release: str, command: str) -> dict[str, Any]:
    """Options that a command sets, by destination."""
    words = shlex.split(command)
    bare = {"sglang": ["sglang", "serve", "--model-path=x"], "vllm": ["vllm", "serve", "x"]}[engine]
    unset = parse(engine, release, bare).values
    return {name: value for name, value in parse(engine, release, words).values.items() if value != unset[name]}


@pytest.mark.parametrize("release", contract_releases("sglang"))
@pytest.mark.parametrize(
    ("seed", "command", "block", "gpu"),
    [
        ("9b", SGLANG_FIRST, 16, H100),
        ("27b", SGLANG_FIRST, 16, H100),
        ("35b-a3b", SGLANG_RETRAIN, 8, B200),
        ("397b-a17b", SGLANG_397B, 8, B200),
    ],
)
def test_sglang_command_of_the_card(seed: str, command: str, block: int, gpu: str, release: str) -> None:
    asked = request("sglang", release, *SEEDS[seed])
    asked = dataclasses.replace(asked, speculation=Fixed(block), gpu_product=gpu)
    wanted = given("sglang", "0.5.17", command.format(target=asked.target.model, drafter=asked.drafter.model))
    launched = ENGINES["sglang"].launch(asked)
    ours = parse("sglang", release, [*launched.command, *launched.args]).values
    # the operator listens on IPv6 too
    left_out = {"host"} & wanted.keys() | {name for since, name in GONE.items() if gpu == B200 and version(release) >= version(since)}
    assert {name: ours[SAME.get(name, name)] for name in wanted if name not in left_out} == {
        name: value for name, value in wanted.items() if name not in left_out
    }
    assert left_out <= wanted.keys()
    assert launched.env.items() >= OVERLAP.items()


@pytest.mark.parametrize("release", contract_releases("sglang"))
def test_the_decode_back_end_of_the_card_comes_with_the_state_it_needs(release: str) -> None:
    asked = dataclasses.replace(request("sglang", release, *SEEDS["35b-a3b"]), extra_args=("--mamba-ssm-dtype=bfloat16",))
    assert "--linear-attn-decode-backend=flashinfer" in ENGINES["sglang"].launch(asked).args


@pytest.mark.parametrize("release", contract_releases("vllm"))
@pytest.mark.parametrize("seed", SEEDS)
def test_vllm_command_of_the_card(seed: str, release: str) -> None:
    asked = request("vllm", release, *SEEDS[seed])
    wanted = given("vllm", release, VLLM.format(target=asked.target.model, drafter=asked.drafter.model))
    launched = ENGINES["vllm"].launch(asked)
    ours = parse("vllm", release, [*launched.command, *launched.args]).values
    assert set(wanted) == {"model_tag", "attention_backend", "max_num_batched_tokens", "speculative_config"}
    assert {name: ours[name] for name in wanted} == wanted
