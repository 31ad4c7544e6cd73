"""Which engines may run code of a model's repository: those whose pair's card asks for it, and no other."""

from dataclasses import replace

import pytest

from dflash_controller.catalog import Catalog
from dflash_controller.catalog.catalog import Pair
from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import LaunchRequest, ModelRef
from dflash_controller.engines.resolve import OperatorDefaults, Resolved, resolve
from testbed.contract.examples import request
from testbed.simulator.argv import Host, parse
from tests.support.releases import contract_releases
from tests.support.render_inputs import deployment, parsed

TRUST = "--trust-remote-code"
RELEASES = [(engine, release) for engine in ENGINES for release in contract_releases(engine)]


def asked(engine: str, release: str, pair: Pair) -> LaunchRequest:
    example = request(engine, release, "Qwen/Qwen3.5-9B", 1)
    target, drafter = ModelRef(pair.target), ModelRef(pair.drafter)
    return replace(example, target=target, drafter=drafter, served_model_name=pair.target, recommended_args=pair.recommended_args(engine))


@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_a_pair_is_trusted_if_and_only_if_its_card_asks_for_it(engine: str, release: str) -> None:
    trusted = {pair.target: TRUST in ENGINES[engine].launch(asked(engine, release, pair)).args for pair in Catalog.load().pairs}
    assert trusted == {pair.target: TRUST in pair.recommended_args(engine) for pair in Catalog.load().pairs}


@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_a_user_can_decline_what_the_card_asks_for(engine: str, release: str) -> None:
    declined = replace(request(engine, release, "Qwen/Qwen3.5-9B", 1), recommended_args=(TRUST,), extra_args=("--no-trust-remote-code",))
    launched = ENGINES[engine].launch(declined)
    assert TRUST not in launched.args
    parse(engine, release, [*launched.command, *launched.args], Host(gpus_per_node=8))


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize(
    "models",
    [
        {"target": {"model": "acme/unknown"}, "drafter": {"model": "acme/unknown-DFlash", "trainedBlockSize": 16}},
        {"target": {"model": "Qwen/Qwen3.5-9B"}, "drafter": {"model": "acme/own-DFlash", "trainedBlockSize": 16}},
    ],
    ids=["unknown target", "unknown drafter"],
)
def test_models_that_the_catalog_does_not_know_are_not_trusted(engine: str, models: dict[str, object]) -> None:
    spec = parsed(deployment(engine={"name": engine}, **models))
    found = resolve(spec, "qwen", "serving", Catalog.load(), OperatorDefaults())
    assert isinstance(found, Resolved)
    assert not [argument for argument in found.recommended_args if TRUST in argument]
