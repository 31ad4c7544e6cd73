"""Back ends are an allow-list by engine release and GPU generation; a GPU that is not in it gets none."""

import dataclasses
from typing import Any

import pytest

from dflash_controller.api.speculation import Off
from dflash_controller.engines import ENGINES
from dflash_controller.engines.backends import BACKENDS
from dflash_controller.engines.flags import index, parsed
from dflash_controller.engines.hardware import GENERATIONS, generation
from dflash_controller.engines.protocol import LaunchRequest
from testbed.contract.examples import SEEDS, request
from tests.support.releases import contract_releases, default_release, floor_release

RTX = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"
BACKEND_FLAGS = ("--attention-backend", "--speculative-draft-attention-backend", "--cuda-graph-backend-prefill")


def ask(engine: str, release: str, **changes: Any) -> LaunchRequest:
    return dataclasses.replace(request(engine, release, "Qwen/Qwen3.5-35B-A3B", 1), **changes)


@pytest.mark.parametrize(
    ("product", "sm"),
    [
        ("NVIDIA-A100-SXM4-80GB", 80),
        ("NVIDIA-A100-PCIE-40GB", 80),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 80),
        ("NVIDIA-A800-SXM4-80GB", 80),
        ("NVIDIA-L4", 89),
        ("NVIDIA-L40", 89),
        ("NVIDIA-L40S", 89),
        ("NVIDIA-L40S-SHARED", 89),
        ("NVIDIA-RTX-6000-Ada-Generation", 89),
        ("NVIDIA-H100-80GB-HBM3", 90),
        ("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", 90),
        ("NVIDIA-H100-NVL", 90),
        ("NVIDIA-H200", 90),
        ("NVIDIA-H20", 90),
        ("NVIDIA-H20-3e", 90),
        ("NVIDIA-GH200-480GB", 90),
        ("NVIDIA-B200", 100),
        ("NVIDIA-B200-MIG-1g.23gb", 100),
        ("NVIDIA-GB200", 100),
        ("NVIDIA-B300-SXM6-AC", 103),
        ("NVIDIA-GB300", 103),
        (RTX, 120),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition", 120),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition", 120),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition-MIG-1g.24gb", 120),
        ("NVIDIA-RTX-PRO-5000-Blackwell", 120),
        ("NVIDIA-GB10", 121),
        ("NVIDIA-DGX-Spark", 121),
    ],
)
def test_generation_of_a_product(product: str, sm: int) -> None:
    found = generation(product)
    assert found is not None
    assert found.sm == sm


@pytest.mark.parametrize(
    "product",
    [
        "",
        "Tesla-T4",
        "NVIDIA-A10",
        "NVIDIA-A40",
        "NVIDIA-RTX-A6000",
        "Quadro-RTX-6000",
        "NVIDIA-B400",
        "AMD-Instinct-MI300X",
        "NVIDIA-H100-B200",
    ],
)
def test_a_product_outside_the_table_has_no_generation(product: str) -> None:
    assert generation(product) is None


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("product", [RTX, "NVIDIA-GB10", "NVIDIA-L40S", "NVIDIA-A100-SXM4-80GB", "NVIDIA-B400", "AMD-Instinct-MI300X"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_gpu_that_nobody_measured_gets_no_measured_back_end(engine: str, product: str, seed: str) -> None:
    """The card's recommendations included: fa3 asserts SM 8.x or 9.x, and trtllm_mha and fa4 were measured on SM100."""
    for release in (floor_release(engine), *contract_releases(engine)):
        asked = dataclasses.replace(request(engine, release, *SEEDS[seed]), gpu_product=product)
        found = index(parsed(ENGINES[engine].launch(asked).args))
        if engine == "sglang":
            assert not {*BACKEND_FLAGS} & found.keys()
        elif "--attention-backend" in found:  # what the card recommends, on a GPU where vLLM's own check admits it
            assert generation(product) is not None
            assert BACKENDS["vllm"].runs(parsed([f"--attention-backend={found['--attention-backend']}"])[0], asked)


@pytest.mark.parametrize(
    ("product", "target", "draft"),
    [
        ("NVIDIA-H100-80GB-HBM3", "fa3", "fa3"),
        ("NVIDIA-H20", "fa3", "fa3"),
        ("NVIDIA-B200", "trtllm_mha", "fa4"),
        ("NVIDIA-GB200", "trtllm_mha", "fa4"),
        ("NVIDIA-B300-SXM6-AC", "trtllm_mha", "fa4"),
    ],
)
def test_the_measured_back_ends_where_they_were_measured(product: str, target: str, draft: str) -> None:
    found = index(parsed(ENGINES["sglang"].launch(ask("sglang", default_release("sglang"), gpu_product=product, recommended_args=())).args))
    assert (found["--attention-backend"], found["--speculative-draft-attention-backend"]) == (target, draft)
    off = ask("sglang", default_release("sglang"), gpu_product=product, recommended_args=(), speculation=Off())
    assert "--speculative-draft-attention-backend" not in index(parsed(ENGINES["sglang"].launch(off).args))


def test_a_user_s_back_end_is_refused_where_it_cannot_run_and_left_alone_where_nobody_knows() -> None:
    def found(flag: str, product: str) -> list[str]:
        asked = ask("sglang", default_release("sglang"), gpu_product=product, extra_args=(flag,))
        return [str(problem) for problem in ENGINES["sglang"].problems(asked)]

    (problem,) = found("--attention-backend=fa3", RTX)
    assert problem.startswith("spec.engine.extraArgs[0]: --attention-backend=fa3 does not run on RTX Blackwell (SM120). Remove")
    assert found("--attention-backend=flashinfer", RTX) == []
    assert found("--attention-backend=fa3", "NVIDIA-B400") == []
    assert found("--decode-attention-backend=fa3", RTX)
    assert found("--prefill-attention-backend=fa3", RTX)


def test_every_entry_names_its_source_and_known_generations() -> None:
    known = {each.sm for each in GENERATIONS}
    for backends in BACKENDS.values():
        assert backends.defaults.keys() <= known
        for entries in backends.entries.values():
            for entry in entries:
                assert entry.source
                assert entry.sm | entry.latent | entry.measured <= known
                assert entry.measured <= entry.sm


def test_the_operator_s_own_choices_are_in_the_allow_list() -> None:
    for engine, backends in BACKENDS.items():
        for sm, chosen in backends.defaults.items():
            product = next(" ".join(each.products[0]) for each in GENERATIONS if each.sm == sm)
            for release in (floor_release(engine), *contract_releases(engine)):
                for name, value in chosen.items():
                    assert backends.runs(parsed([f"{name}={value}"])[0], ask(engine, release, gpu_product=product)), (engine, sm, name)
