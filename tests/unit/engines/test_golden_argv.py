"""Rendered command lines against the golden files; ``DFLASH_UPDATE_GOLDEN=1`` rewrites them."""

import os

import pytest

from testbed.contract.examples import Example, examples
from testbed.contract.golden import GOLDEN, files, read, rendered
from testbed.simulator.argv import Host, parse

UPDATE = bool(os.environ.get("DFLASH_UPDATE_GOLDEN"))
EXAMPLES = list(examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_command_line_is_golden(example: Example) -> None:
    for name, text in rendered(example).items():
        path = GOLDEN / name
        if UPDATE:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{name} is new: run with DFLASH_UPDATE_GOLDEN=1 and read the difference"
        assert text == path.read_text()


def test_no_golden_file_is_left_over() -> None:
    wanted = {name for example in EXAMPLES for name in rendered(example)}
    assert {str(path.relative_to(GOLDEN)) for _, _, path in files()} == wanted


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_the_engine_reads_what_was_asked(example: Example) -> None:
    request = example.request
    for name in rendered(example):
        env, command = read(GOLDEN / name)
        expanded = [word.replace("$(LWS_LEADER_ADDRESS)", "leader").replace("$(LWS_WORKER_INDEX)", "1") for word in command]
        host = Host(gpu_product=request.gpu_product, gpus_per_node=8, hybrid_target=request.hybrid_target, environ=env)
        parsed = parse(example.engine, request.release, expanded, host)
        assert parsed.block_size == request.speculation.max_block_size
        assert parsed.target == request.target.model
        assert parsed.target_revision == request.target.revision
        assert parsed.drafter == (request.drafter.model if parsed.drafting else None)
        assert parsed.drafter_revision == request.drafter.revision
        assert parsed.served_model_name == request.served_model_name
        assert (parsed.tensor_parallel, parsed.nodes) == (request.tensor_parallel, request.nodes)
        assert parsed.node_rank == (1 if ".worker" in name else 0)
        assert parsed.max_concurrency == request.max_concurrency
        assert parsed.port == request.port
        assert parsed.metrics_enabled
