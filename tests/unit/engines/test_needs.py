"""needs.yaml is about real options and values, and rules read only options that extraArgs may carry in full."""

import dataclasses
from collections.abc import Iterator

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.engines.command_line import CommandLine, read
from dflash_controller.engines.flags import Flag
from dflash_controller.engines.needs import NEEDS, Need
from dflash_controller.engines.options import OPTIONS
from dflash_controller.engines.releases import version
from dflash_controller.engines.sglang.rules import CHECKED as SGLANG_CHECKED
from dflash_controller.engines.sglang.rules import RULES as SGLANG_RULES
from dflash_controller.engines.vllm.rules import CHECKED as VLLM_CHECKED
from dflash_controller.engines.vllm.rules import RULES as VLLM_RULES
from testbed.contract.combinations import COMBINATIONS, Combination
from testbed.simulator.option_table import facts, table_names

ENTRIES = [(engine, need) for engine, needs in NEEDS.items() for need in needs]


class Recorded(dict[str, str]):
    """Values that remember which options were looked at."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.seen: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.seen.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        self.seen.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_rule_reads_only_options_that_are_guarded(engine: str) -> None:
    """Else an abbreviation of what it reads would pass by it."""
    rules = SGLANG_RULES if engine == "sglang" else VLLM_RULES
    checked = {OPTIONS[engine].meaning(name, "9.0.0").option for name in (SGLANG_CHECKED if engine == "sglang" else VLLM_CHECKED)}
    owned = {OPTIONS[engine].meaning(name, "9.0.0").option for name in ENGINES[engine].owned_flags()}
    seen: set[str] = set()
    for case in COMBINATIONS:
        if case.engine != engine:
            continue
        asked = case.request(case.releases()[-1], case.flags)
        line = read(asked, case.flags, OPTIONS[engine])
        values = Recorded(dict(line.values))
        for rule in rules:
            list(rule(CommandLine(line.request, line.release, values, line.written)))
        seen |= {OPTIONS[engine].meaning(name.partition(".")[0], "9.0.0").option for name in values.seen}
    assert len(seen) > 30
    assert seen - checked - owned == set()


@pytest.mark.parametrize(("engine", "need"), ENTRIES, ids=lambda value: value.flag if isinstance(value, Need) else value)
def test_a_need_is_about_options_and_values_of_a_release(engine: str, need: Need) -> None:
    found = set()
    for name in table_names():
        of, _, release = name.partition("-")
        if of != engine or not need.since <= version(release) < need.before:
            continue
        options = {spelling: option for option in facts(name)["options"] for spelling in option["names"]}
        if need.flag not in options:
            continue
        alternatives = [{each.name for each in group} - {"tensor"} for group in need.alternatives]
        assert not alternatives or any(names <= options.keys() for names in alternatives)
        assert all(OPTIONS[engine].meaning(each, release).option == each for each in need.names)
        found |= {str(choice) for choice in options[need.flag].get("choices", need.values)}
    assert found >= need.values


@pytest.mark.parametrize(("engine", "need"), ENTRIES, ids=lambda value: value.flag if isinstance(value, Need) else value)
def test_every_need_is_a_case_of_the_engine_contract(engine: str, need: Need) -> None:
    cases = [case for case in COMBINATIONS if case.engine == engine and Flag.parse(case.flags[0]).name == need.flag and case.refused]
    values = {Flag.parse(case.flags[0]).value for case in cases}
    assert cases
    assert values >= need.values


def test_a_card_s_flag_that_needs_another_is_left_out() -> None:
    for case in needing("sglang"):
        asked = dataclasses.replace(case.request(case.releases()[-1], ()), recommended_args=case.flags)
        assert case.flags[0] not in ENGINES["sglang"].launch(asked).args


def needing(engine: str) -> Iterator[Combination]:
    yield from (case for case in COMBINATIONS if case.engine == engine and case.flags[0] in ("--dcp-replicate-q-proj", "--enable-eplb"))
