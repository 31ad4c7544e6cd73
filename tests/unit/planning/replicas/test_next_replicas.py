"""The disruption budget, against a small model of how Deployments behave."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_controller.planning.replicas.next_replicas import Budget, Pool, next_replicas


def test_growth_waits_for_terminating_pods() -> None:
    pools = [Pool("old", 2, 2, 2, terminating=1)]
    assert next_replicas(Budget(3, 0, 1), pools, {"new": 1, "old": 2}) == {"old": 2, "new": 0}


def test_pods_not_yet_deleted_hold_their_accelerators() -> None:
    pools = [Pool("old", wanted=2, existing=3, serving=3, terminating=0, settled=False)]
    assert next_replicas(Budget(3, 0, 1), pools, {"new": 1, "old": 2})["new"] == 0


def test_nothing_shrinks_while_the_controller_lags() -> None:
    pools = [Pool("old", 3, 3, 3, 0, settled=False)]
    assert next_replicas(Budget(3, 0, 3), pools, {"new": 1, "old": 2})["old"] == 3


def test_a_wholly_broken_stable_is_left() -> None:
    pools = [Pool("old", 3, 3, 0, 0), Pool("new", 0, 0, 0, 0)]
    assert next_replicas(Budget(3, 0, 1), pools, {"new": 3}) == {"old": 0, "new": 0}


def test_broken_replicas_go_first() -> None:
    pools = [Pool("candidate", 2, 2, 0, 0), Pool("older", 2, 2, 2, 0)]
    assert next_replicas(Budget(3, 1, 1), pools, {"stable": 3}) == {"candidate": 0, "older": 2, "stable": 0}


def test_a_leaderworkerset_may_lose_a_serving_group() -> None:
    pools = [Pool("old", 3, 3, 2, 0, drops_broken_first=False)]
    assert next_replicas(Budget(3, 0, 1), pools, {"new": 1, "old": 2})["old"] == 3


pool_sizes = st.integers(0, 5)


@st.composite
def states(draw: st.DrawFn) -> tuple[Budget, list[Pool], dict[str, int]]:
    replicas = draw(st.integers(0, 6))
    surge = draw(st.integers(0, 3))
    unavailable = draw(st.integers(0 if surge else 1, 4))
    pools = []
    for name in ("a", "b", "c"):
        wanted, existing = draw(pool_sizes), draw(pool_sizes)
        pools.append(
            Pool(name, wanted, existing, draw(st.integers(0, existing)), draw(st.integers(0, 2)), draw(st.booleans()), draw(st.booleans()))
        )
    return Budget(replicas, surge, unavailable), pools, draw(st.dictionaries(st.sampled_from("abcd"), pool_sizes))


@settings(max_examples=400, deadline=None)
@given(states())
def test_no_step_breaks_the_budget(state: tuple[Budget, list[Pool], dict[str, int]]) -> None:
    limits, pools, goals = state
    wanted = next_replicas(limits, pools, goals)
    before = sum(pool.serving_at(pool.wanted) for pool in pools)
    after = sum(pool.serving_at(wanted[pool.revision]) for pool in pools)
    assert after >= min(before, limits.floor)
    held_before = sum(max(pool.wanted, pool.existing) + pool.terminating for pool in pools)
    growth = sum(max(0, wanted[name] - next((p.wanted for p in pools if p.revision == name), 0)) for name in wanted)
    assert growth == 0 or held_before + growth <= limits.ceiling


class World:
    """Deployments that obey at once, with pods that take one round to become ready and one to go."""

    def __init__(self, replicas: int) -> None:
        self.ready = {"old": replicas}
        self.starting: dict[str, int] = {}
        self.terminating: dict[str, int] = {}

    def pools(self) -> list[Pool]:
        names = {*self.ready, *self.starting, *self.terminating}
        result = []
        for name in sorted(names):
            existing = self.ready.get(name, 0) + self.starting.get(name, 0)
            result.append(Pool(name, existing, existing, self.ready.get(name, 0), self.terminating.get(name, 0)))
        return result

    def turn(self, wanted: dict[str, int]) -> None:
        self.terminating = {}
        for name, starting in self.starting.items():
            self.ready[name] = self.ready.get(name, 0) + starting
        self.starting = {}
        for name, want in wanted.items():
            ready = self.ready.get(name, 0)
            if want < ready:
                self.terminating[name], self.ready[name] = ready - want, want
            elif want > ready:
                self.starting[name] = want - ready


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable"), [(1, 0, 1), (1, 1, 0), (3, 0, 1), (4, 0, 2), (4, 2, 0), (5, 1, 1), (8, 0, 8)]
)
def test_a_rollout_ends_within_the_budget(replicas: int, surge: int, unavailable: int) -> None:
    limits = Budget(replicas, surge, unavailable)
    world = World(replicas)
    promoted = False
    for _ in range(50):
        pools = world.pools()
        serving = sum(pool.serving for pool in pools)
        assert serving >= limits.floor
        assert sum(pool.existing + pool.terminating for pool in pools) <= limits.ceiling
        promoted = promoted or world.ready.get("new", 0) > 0
        goals = {"new": replicas} if promoted else {"new": 1, "old": replicas - (0 if surge else 1)}
        world.turn(next_replicas(limits, pools, goals))
        if world.ready == {"old": 0, "new": replicas}:
            return
    pytest.fail(f"not finished: {world.ready}")
