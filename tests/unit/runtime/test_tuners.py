"""What is known of each deployment between two looks, and what is kept of it."""

from __future__ import annotations

import io
import json
import logging
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed, parse_speculation
from dflash_controller.cli.replay import main as replay
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.snapshot import Key, Pod, Snapshot
from dflash_controller.planning.revisions.revision import RevisionState, data, manifest
from dflash_controller.planning.revisions.roles import read_stored
from dflash_controller.planning.revisions.trial_state import Trial
from dflash_controller.planning.state.inputs import Knowledge
from dflash_controller.runtime.logs import JsonFormatter
from dflash_controller.runtime.tuners import Tuners
from dflash_controller.tuner.decision import TunerDecision
from dflash_controller.tuner.learned import Learned, PairKnowledge
from dflash_controller.tuner.learner import Learner
from dflash_controller.tuner.policy import decide
from dflash_controller.tuner.schedule_price import SchedulePrice
from tests.support.render_inputs import deployment, resolved
from tests.support.tuner_inputs import AUTO, tuner_inputs

KEY = Key("models", "chat")
RESOLVED = resolved(deployment())
START = datetime(2026, 1, 1, tzinfo=UTC)


class Measured:
    """Stands for the measurements."""

    def __init__(self) -> None:
        self.waiting: list[LoadSample] = []
        self.tried: dict[str, list[LoadSample]] = {}
        """Those of a candidate, by its hash."""
        self.pods = 2

    def load_samples(self, key: Key, revision: str) -> list[LoadSample]:
        if revision in self.tried:
            return self.tried.pop(revision)
        taken, self.waiting = self.waiting, []
        return taken

    def measured(self, key: Key, stable: str) -> int:
        return self.pods


class Room:
    """Tuners with a clock."""

    def __init__(self, record_s: float = 3600.0) -> None:
        self.now = START
        self.measured = Measured()
        self.tuners = Tuners(self.measured, record_s, lambda: self.now)

    def look(
        self, *revisions: dict[str, Any], state: RevisionState = RevisionState.STABLE, pods: tuple[Pod, ...] = (), **spec: Any
    ) -> Knowledge:
        """What is known where the last of these revisions has this state, and the status was lost."""
        for item in revisions:
            item["metadata"]["annotations"][names.ANNOTATION_STATE] = (state if item is revisions[-1] else RevisionState.RETIRED).value
        seen = Snapshot(KEY, {"spec": spec}, revisions=revisions, pods=pods)
        return self.tuners.knowledge(seen, read_stored(seen.revisions))

    def serve(self, minutes: int, block: int = 16) -> None:
        for _ in range(minutes):
            self.now += timedelta(minutes=1)
            at_s = self.now.timestamp()
            self.measured.waiting.append(LoadSample(at_s, 60.0, block, 8.0, 0.01, 40_000.0, 200_000.0, 200_000.0))


def revision(name: str, number: int = 1, learned: str | None = None, *, speculation: Any = None, **changes: Any) -> dict[str, Any]:
    """A ControllerRevision; where there are several, the last one is stable."""
    speculated = parse_speculation(speculation or {"mode": "Fixed", "blockSize": 16})
    content = data({}, None, speculated, replace(RESOLVED, **changes), {"apiVersion": "apps/v1", "kind": "Deployment"})
    item = manifest(KEY.name, KEY.namespace, {}, name.removeprefix("chat-"), number, content, RevisionState.STABLE, [], Trial())
    if learned is not None:
        item["metadata"]["annotations"][names.ANNOTATION_LEARNED] = learned
    return item


def engine(name: str) -> Pod:
    """One that serves."""
    return Pod(
        *(name, name, "1", "ra", "engine", "node", "10.0.0.1", "Running"),
        ready=True,
        ready_since=START,
        terminating=False,
        restarts=0,
        waiting_reason=None,
        message=None,
        unschedulable=None,
        unschedulable_since=None,
    )


def test_nothing_is_known_before_a_revision_is_in_force() -> None:
    assert Room().look(revision("chat-ra"), state=RevisionState.CANDIDATE).learned is None


@pytest.mark.parametrize(("changes", "blocks"), [({}, {8, 16}), ({"version": "0.0.1"}, {16})])
def test_a_replica_on_trial_teaches_the_curve_that_it_runs_on(changes: dict[str, Any], blocks: set[int]) -> None:
    """Whatever becomes of it. Its traffic does not count for the health of the drafter that serves."""
    room = Room()
    stable = revision("chat-ra")
    tried = revision("chat-rb", 2, speculation={"mode": "Fixed", "blockSize": 8}, **changes)
    tried["metadata"]["annotations"][names.ANNOTATION_STATE] = RevisionState.CANDIDATE.value
    seen = Snapshot(KEY, {"spec": {}}, revisions=(stable, tried))
    room.serve(10)
    at_s = room.now.timestamp()
    room.measured.tried["rb"] = [LoadSample(at_s - 60 * ago, 60.0, 8, 8.0, 0.007, 4e4, 1.6e5, 1.6e5) for ago in range(8)]
    known = room.tuners.knowledge(seen, read_stored(seen.revisions))
    assert known.learned is not None
    assert {point.block for point in known.learned.points} == blocks
    assert {load_sample.block for load_sample in known.recent} == {16}


def test_what_was_served_is_learned_once_and_the_last_minutes_are_at_hand() -> None:
    room = Room()
    room.serve(3)
    known = room.look(revision("chat-ra"))
    assert (len(known.recent), known.measured) == (3, 2)
    again = room.look(revision("chat-ra"))
    assert again.learned == known.learned
    room.now += timedelta(hours=1)
    assert room.look(revision("chat-ra")).recent == ()


def test_the_window_is_the_specs() -> None:
    room = Room()
    room.serve(10)
    one, ten = (room.look(revision("chat-ra"), tuning={"window": window}).learned for window in ("1m", "10m"))
    assert one is not None
    assert ten is not None
    assert one.load_samples < ten.load_samples


def test_what_was_learned_is_to_be_kept_once_an_hour_and_comes_back_after_a_restart() -> None:
    room = Room()
    room.serve(30)
    assert room.look(revision("chat-ra")).record is None
    room.serve(61)
    room.look(revision("chat-ra"))
    room.now += timedelta(minutes=1)
    record = room.look(revision("chat-ra")).record
    assert record is not None
    room.tuners.stored(KEY)
    assert room.look(revision("chat-ra")).record is None
    other = Room()
    other.now = room.now
    learned = other.look(revision("chat-ra", learned=record)).learned
    assert learned is not None
    assert learned.points


def test_where_nothing_is_served_nothing_is_written() -> None:
    """Nor where tuning is off, which has no load samples at all."""
    room = Room()
    room.look(revision("chat-ra"))
    room.now += timedelta(hours=5)
    assert room.look(revision("chat-ra")).record is None
    room.serve(1)
    assert room.look(revision("chat-ra")).record is not None
    room.tuners.stored(KEY)
    room.now += timedelta(hours=5)
    room.measured.waiting.append(LoadSample(room.now.timestamp(), 60.0, 16, 0.0, 0.0, 0.0, 0.0, 0.0))
    assert room.look(revision("chat-ra")).record is None


def test_another_block_keeps_the_curve_and_takes_the_record_along_at_once() -> None:
    room = Room()
    room.serve(5)
    first = revision("chat-ra")
    known = room.look(first)
    second = revision("chat-rb", 2, speculation={"mode": "Fixed", "blockSize": 8})
    moved = room.look(first, second)
    assert known.learned is not None
    assert moved.learned is not None
    assert moved.learned.points == known.learned.points
    assert moved.record is not None
    assert moved.recent == ()


@pytest.mark.parametrize("change", [{"engine": "vllm"}, {"tensor_parallel": 8}])
def test_another_engine_or_size_has_another_curve(change: dict[str, Any]) -> None:
    room = Room()
    room.serve(5)
    first = revision("chat-ra")
    room.look(first)
    moved = room.look(first, revision("chat-rb", 2, **change))
    assert moved.learned is not None
    assert moved.learned.points == ()


def test_another_number_of_requests_starts_a_curve_from_what_was_known() -> None:
    room = Room()
    room.serve(5)
    first = revision("chat-ra")
    room.look(first)
    learned = room.look(first, revision("chat-rb", 2, max_concurrency=8)).learned
    assert learned is not None
    assert [(point.block, point.prior) for point in learned.points] == [(16, True)]


OTHER = Key("models", "other")


def shared(room: Room, key: Key = OTHER, **changes: Any) -> Learned:
    """What another deployment of the cluster knows, which has served nothing."""
    item = revision("other-ra", **changes)
    item["metadata"]["annotations"][names.ANNOTATION_STATE] = RevisionState.STABLE.value
    seen = Snapshot(key, {"spec": {}}, revisions=(item,), pods=())
    learned = room.tuners.knowledge(seen, read_stored(seen.revisions)).learned
    assert learned is not None
    return learned


def told(learned: Learned) -> list[tuple[int, bool]]:
    return [(point.block, point.prior) for point in learned.points]


def test_a_new_deployment_of_the_same_pair_starts_from_what_the_others_know() -> None:
    room = Room()
    room.serve(20)
    room.look(revision("chat-ra"))
    found = shared(room, drafter=ModelRef("z-lab/another"), max_concurrency=7)
    assert told(found) == [(16, True)]
    assert found.points[0].seconds == pytest.approx(0.01, rel=1e-3)
    assert found.load_samples == 0, "the load is its own"


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "vllm"},
        {"version": "0.5.16"},
        {"target": ModelRef("Qwen/Another")},
        {"tensor_parallel": 8},
        {"nodes": 2},
        {"gpu_product": "NVIDIA-H100"},
        {"extra_args": ("--quantization=fp8",)},
    ],
)
def test_another_pair_starts_from_nothing(change: dict[str, Any]) -> None:
    room = Room()
    room.serve(20)
    room.look(revision("chat-ra"))
    assert shared(room, **change).points == ()


def test_what_a_deleted_deployment_knew_is_not_lost_even_after_a_restart() -> None:
    room = Room()
    room.serve(20)
    room.look(revision("chat-ra"))
    room.tuners.forget(KEY)
    assert told(shared(room)) == [(16, True)]
    borrower = Learner()
    borrower.borrow([PairKnowledge([[16, 20.0, math.log(8.0), math.log(0.01), START.timestamp()]])])
    record = json.dumps(borrower.to_json())
    assert told(shared(Room(), learned=record)) == [(16, True)]


def test_what_is_learned_later_reaches_the_others_too_and_own_measurements_take_its_place() -> None:
    room = Room()
    room.serve(20)
    room.look(revision("chat-ra"))
    shared(room)
    room.serve(20, block=8)
    room.look(revision("chat-ra"))
    found = shared(room)
    assert told(found) == [(8, True), (16, True)]
    room.serve(20)
    assert told(shared(room)) == [(8, True), (16, False)]


def test_nobody_borrows_from_itself() -> None:
    room = Room()
    for _ in range(3):
        room.serve(20)
        learned = room.look(revision("chat-ra")).learned
        assert learned is not None
        assert told(learned) == [(16, False)]


def test_the_record_moves_with_the_revision_in_force_if_there_is_one() -> None:
    """Also when the operator was restarted in between; where nothing was ever learned there is nothing to move, and nothing is written."""
    room = Room(record_s=0.0)
    first, second = revision("chat-ra"), revision("chat-rb", 2, speculation={"mode": "Fixed", "blockSize": 8})
    room.look(first)
    assert room.look(first, second).record is None
    room.serve(5)
    record = room.look(first, second).record
    assert record is not None
    kept = revision("chat-ra", learned=record)
    again = Room()
    assert again.look(kept).record is None
    assert again.look(kept, second).record is not None
    restarted = Room()
    assert restarted.look(kept, second).record is not None
    restarted.tuners.stored(KEY)
    assert restarted.look(kept, second).record is None


def test_a_damaged_record_is_said_and_learned_anew(caplog: pytest.LogCaptureFixture) -> None:
    known = Room().look(revision("chat-ra", learned="{"))
    assert known.learned is not None
    assert known.learned.points == ()
    assert "cannot be read" in caplog.text


def test_under_a_table_a_shorter_block_is_priced_as_a_true_one() -> None:
    room = Room()
    room.serve(5, block=8)
    table = {"mode": "Schedule", "ranges": [[1, 4, 15], [5, 64, 7]]}
    learned = room.look(revision("chat-ra", speculation=table)).learned
    assert learned is not None
    assert learned.points[0].seconds < 0.0097


def test_a_decision_is_logged_when_it_says_something_else_and_can_be_made_again(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    room.serve(30)
    learned = room.look(revision("chat-ra")).learned
    assert learned is not None
    decision = decide(tuner_inputs(now_s=room.now.timestamp(), policy=replace(AUTO, mode="Advise")), learned)
    with caplog.at_level(logging.INFO):
        room.tuners.decided(KEY, decision)
        room.tuners.decided(KEY, decision)
    told = [record for record in caplog.records if hasattr(record, "decision")]
    assert len(told) == 1
    out = io.StringIO()
    assert replay((), io.StringIO("noise\n" + JsonFormatter().format(told[0]) + "\n"), out) == 0
    assert "1 decisions, 0 of them different" in out.getvalue()
    line = json.loads(JsonFormatter().format(told[0]))
    line["decision"]["reason"] = "Dwelling"
    assert replay((), io.StringIO(json.dumps(line)), io.StringIO()) == 1
    assert replay((), io.StringIO("noise\n"), io.StringIO(), io.StringIO()) == 2


def test_how_long_too_few_pods_have_been_measured_is_known() -> None:
    room = Room()
    pods = tuple(engine(name) for name in "abcd")

    def short(measured: int, seconds: float) -> float:
        room.measured.pods, room.now = measured, room.now + timedelta(seconds=seconds)
        return room.look(revision("chat-ra"), pods=pods).short_for_s

    assert [short(2, 0), short(1, 60), short(0, 60), short(1, 60)] == [0, 0, 60, 120]
    assert [short(2, 60), short(1, 60), short(1, 30)] == [0, 0, 30], "half of four pods is enough"


def test_how_long_a_decision_has_stood_is_known() -> None:
    room = Room()
    room.look(revision("chat-ra"))
    decision = TunerDecision("Advising", Reason.TUNED, "words", Fixed(8))
    room.tuners.decided(KEY, decision)
    room.now += timedelta(minutes=5)
    room.tuners.decided(KEY, decision)
    known = room.look(revision("chat-ra"))
    assert (known.reported, known.reported_since) == (("Advising", "Tuned", "8", "words"), START)
    room.tuners.forget(KEY)
    assert room.look(revision("chat-ra")).reported == ()


def test_another_cause_stands_from_its_own_beginning_and_other_numbers_do_not() -> None:
    room = Room()
    room.look(revision("chat-ra"))
    none = TunerDecision("Learning", Reason.LEARNING, "Not enough traffic: 0 load samples in the last 300 s")
    waiting = replace(none, message="In 8 of 9 load samples in the last 300 s requests waited")
    room.tuners.decided(KEY, none)
    for message in (waiting.message, waiting.message.replace("8", "7")):
        room.now += timedelta(minutes=1)
        room.tuners.decided(KEY, replace(waiting, message=message))
    known = room.look(revision("chat-ra"))
    assert known.reported_since == START + timedelta(minutes=1)


TABLE = {"mode": "Schedule", "ranges": [[1, 4, 15], [5, 64, 7]]}
VLLM_HYBRID = {"engine": "vllm", "hybrid": True, "mixture_of_experts": False}
VLLM_DENSE = {"engine": "vllm", "hybrid": False, "mixture_of_experts": False}


def learn_price(room: Room, slower: float, **machine: Any) -> Knowledge:
    """Both blocks run fixed for an hour, and then a table whose steps take longer by ``slower``."""
    fixed = revision("chat-ra", **machine)
    room.look(fixed)
    for block, step_s in ((16, 0.010), (8, 0.007)):
        for _ in range(60):
            room.now += timedelta(minutes=1)
            room.measured.waiting.append(LoadSample(room.now.timestamp(), 60.0, block, 8.0, step_s, 4e4, 2e5, 2e5))
    room.look(fixed)
    room.look(fixed)
    table = revision("chat-rb", 2, speculation=TABLE, **machine)
    for _ in range(60):
        room.now += timedelta(minutes=1)
        room.measured.waiting.append(LoadSample(room.now.timestamp(), 60.0, 8, 8.0, slower * 0.007, 4e4, 1.6e5, 1.6e5))
        room.look(fixed, table)
    return room.look(fixed, table)


def test_the_price_of_a_schedule_is_known_where_it_was_measured() -> None:
    assert Room().look(revision("chat-ra", **VLLM_DENSE)).schedule_price == SchedulePrice(4.5)
    for other in (VLLM_HYBRID, {**VLLM_DENSE, "mixture_of_experts": True}, {**VLLM_DENSE, "engine": "sglang"}):
        assert Room().look(revision("chat-ra", **other)).schedule_price is None


def test_the_price_of_a_schedule_is_learned_by_kind_of_machine_and_survives_a_restart() -> None:
    room = Room(record_s=60.0)
    known = learn_price(room, 1.25, **VLLM_HYBRID)
    assert known.schedule_price is not None
    assert known.schedule_price.below_percent == pytest.approx(25, abs=1)
    assert known.schedule_price.largest_percent == pytest.approx(25, abs=1), "what every step loses, the largest block loses too"
    other = Snapshot(Key("models", "other"), {"spec": {}}, revisions=(revision("chat-rc", **VLLM_HYBRID),))
    assert room.tuners.knowledge(other, read_stored(other.revisions)).schedule_price == known.schedule_price
    assert room.look(revision("chat-rd", **{**VLLM_HYBRID, "mixture_of_experts": True})).schedule_price is None
    after = Room().look(revision("chat-rb", learned=known.record, speculation=TABLE, **VLLM_HYBRID))
    assert after.schedule_price == known.schedule_price


def test_steps_under_a_schedule_teach_the_curve_of_fixed_block_sizes_by_the_learned_price() -> None:
    known = learn_price(Room(), 1.25, **VLLM_HYBRID)
    assert known.learned is not None
    (eights,) = [point for point in known.learned.points if point.block == 8]
    assert eights.seconds == pytest.approx(0.007, rel=0.08), "the first ones came before the price was known"


def test_what_was_not_measured_with_a_fixed_block_size_teaches_no_price() -> None:
    """The curve of the block would come from the table itself, and would confirm whatever was assumed."""
    room = Room()
    fixed = revision("chat-ra", **VLLM_HYBRID)
    room.look(fixed)
    room.serve(60)
    room.look(fixed)
    room.look(fixed)
    table = revision("chat-rb", 2, speculation=TABLE, **VLLM_HYBRID)
    for _ in range(60):
        room.serve(1, block=8)
        known = room.look(fixed, table)
    assert known.schedule_price is None


@pytest.mark.parametrize("damage", [[[1, "x", 0.1]], {"a": 1}, 3, [[0.0, 50.0, 99.0]], [[0.0, -5.0, 0.1]]])
def test_a_damaged_price_counts_as_none(damage: Any) -> None:
    text = json.dumps({"v": 1, "schedulePrice": damage})
    assert Room().look(revision("chat-ra", learned=text, **VLLM_HYBRID)).schedule_price is None
