"""Every field of status that the CustomResourceDefinition publishes is written, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

from pydantic import TypeAdapter

from dflash_controller.analysis.verdict import MetricVerdict, Outcome
from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed, Schedule
from dflash_controller.api.status import Status
from dflash_controller.planning.state.inputs import Knowledge
from dflash_controller.runtime.measurements import STATUS_FIELDS
from dflash_controller.tuner.decision import TunerDecision
from dflash_controller.tuner.learned import Learned
from tests.support.planning_world import PASSED, UNDECIDED, World
from tests.unit.planning.test_planner import COMMIT, set_drafter, settled

VERDICT = MetricVerdict("speed", Outcome.SUCCESSFUL, "kept", 1.0, 1.0, 5.0, 100.0, 100.0, 3.0, gates=False)
ANY = frozenset({"tuning.inputs"})
"""Maps whose keys are the operator's own."""


def published(schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The fields of a type that hold no further ones, as paths."""
    for option in schema.get("anyOf", [schema]):
        found = definitions[option["$ref"].rpartition("/")[2]] if "$ref" in option else option
        if found.get("type") == "null":
            continue
        if "properties" in found and path not in ANY:
            for name, field in found["properties"].items():
                yield from published(field, definitions, f"{path}.{name}" if path else name)
        elif "$ref" in (found.get("items") or {}):
            yield from published(found["items"], definitions, path)
        else:
            yield path


def written(value: Any, path: str = "") -> Iterator[str]:
    """The same of a status."""
    if isinstance(value, Mapping) and path not in ANY:
        for name, inner in value.items():
            yield from written(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for inner in value:
            yield from written(inner, path)
    elif value is not None:
        yield path


def test_every_field_of_status_is_written() -> None:
    schema = TypeAdapter(Status).json_schema(by_alias=True)
    seen: set[str] = set()

    def look(world: World) -> None:
        world.reconcile()
        seen.update(written(world.deployment["status"]))

    world = settled(replicas=3, engine={"name": "vllm"})
    world.metric_values = {field: 1.0 for field, _ in STATUS_FIELDS.values()}
    world.tuning = Knowledge(learned=Learned(), measured=3)
    table = Schedule(((1, 8, 15), (9, 64, 7)))
    change = TunerDecision("Tuning", Reason.TUNED, "words", table, table, {"gainPercent": 20.0}, {}, 1.8e9)
    world.edit(lambda spec: spec.update(tuning={"mode": "Auto"}))
    with patch("dflash_controller.planning.tuning.decide", lambda *_, **__: change):
        look(world)
        world.settle()
        look(world)
    world.tuning = Knowledge()
    world.judgement = type(UNDECIDED)(UNDECIDED.decision, UNDECIDED.reason, UNDECIDED.message, (VERDICT,))
    world.edit(set_drafter(COMMIT))
    world.settle()
    look(world)
    world.judgement = PASSED
    world.settle()
    look(world)
    single = settled(replicas=1, blockSize=8)
    assert Fixed(8).label() == single.deployment["status"]["speculation"]["label"]
    seen.update(written(single.deployment["status"]))
    assert seen == set(published(schema, schema["$defs"]))
