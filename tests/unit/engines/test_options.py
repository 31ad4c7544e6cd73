"""A flag's name means to the operator what it means to the engine's own parser, abbreviations and negations included."""

import argparse
import dataclasses
from collections.abc import Iterator

import pytest

from dflash_controller.api.problem import Problem
from dflash_controller.engines import ENGINES
from dflash_controller.engines.flags import Guard, merge, parsed
from dflash_controller.engines.options import OPTIONS, Meaning
from dflash_controller.engines.sglang.limits import GUARD as SGLANG
from dflash_controller.engines.sglang.names import RENAMED
from dflash_controller.engines.sglang.rules import CHECKED as SGLANG_CHECKED
from dflash_controller.engines.vllm.limits import GUARD as VLLM
from dflash_controller.engines.vllm.rules import CHECKED as VLLM_CHECKED
from testbed.contract import tables
from testbed.contract.examples import request
from testbed.simulator.option_table import parser, table_names
from tests.support.releases import default_release

GUARDS: dict[str, Guard] = {"sglang": SGLANG, "vllm": VLLM}


def problems(engine: str, *extra: str, release: str = "") -> list[Problem]:
    base = request(engine, release or default_release(engine), "Qwen/Qwen3.5-35B-A3B", 1)
    return list(ENGINES[engine].problems(dataclasses.replace(base, extra_args=extra)))


def shortened(name: str) -> Iterator[str]:
    """Every abbreviation of a long name that still says something."""
    yield from (name[:end] for end in range(len("--x"), len(name)))


def test_the_operator_s_names_are_those_of_the_engines_parsers() -> None:
    assert tables.options_text(tables.written_tables()) == tables.OPTIONS.read_text(), "run python -m testbed.contract.tables"


@pytest.mark.parametrize("name", table_names())
def test_a_name_means_what_the_release_s_parser_takes_it_for(name: str) -> None:
    engine, _, release = name.partition("-")
    actions: dict[str, argparse.Action] = parser(name)._option_string_actions
    owners = {id(action): OPTIONS[engine].meaning(full, release).option for full, action in actions.items() if full not in ("-h", "--help")}
    assert len(set(owners.values())) == len(owners)
    for full, action in actions.items():
        if not full.startswith("--") or full == "--help":
            continue
        assert OPTIONS[engine].meaning(full, release) == Meaning(owners[id(action)], full in getattr(action, "off", ()))
        for shorter in list(shortened(full))[-4:]:
            matched = [begun for begun in actions if begun.startswith(shorter)]
            if shorter not in actions and len(matched) == 1 and OPTIONS[engine].full(shorter, release) is None:
                assert OPTIONS[engine].meaning(shorter, release).option == owners[id(actions[matched[0]])]


@pytest.mark.parametrize("engine", sorted(GUARDS))
def test_rules_read_options_by_the_names_that_the_command_line_is_read_by(engine: str) -> None:
    names = SGLANG_CHECKED if engine == "sglang" else VLLM_CHECKED
    release = default_release(engine)
    from_ranks = {name for name in names if name not in OPTIONS[engine].anywhere}
    assert from_ranks == set()
    aliases = {name: OPTIONS[engine].meaning(name, release).option for name in names}
    assert all(option in names for option in aliases.values())


@pytest.mark.parametrize("name", table_names())
def test_no_abbreviation_of_a_guarded_flag_passes(name: str) -> None:
    engine, _, release = name.partition("-")
    guard, names = GUARDS[engine], OPTIONS[engine].known(release)
    guarded = {OPTIONS[engine].meaning(full, release).option for full in (*guard.owned, *guard.checked)}
    tried = 0
    for full, meaning in names.items():
        if not full.startswith("--") or meaning.option not in guarded:
            continue
        for shorter in shortened(full):
            if OPTIONS[engine].full(shorter, release) is None and shorter not in guard.checked:
                tried += 1
                assert guard.problems([f"{shorter}=1"], release), shorter
    assert tried > 1000


@pytest.mark.parametrize(
    ("token", "message", "remedy"),
    [
        ("--no-enable-chunked-prefil", "an abbreviation of --no-enable-chunked-prefill", "Write --no-enable-chunked-prefill in full"),
        ("--no_enable_chunked_prefil", "an abbreviation of --no-enable-chunked-prefill", "Write --no-enable-chunked-prefill in full"),
        ("--disable-chunked-prefil", "an abbreviation of --disable-chunked-prefill", "Write --disable-chunked-prefill in full"),
        ("--attention-c.backend=FLASHINFER", "an abbreviation of --attention-config", "Write --attention-config in full"),
        ("--disable-log-stat", "an abbreviation of --disable-log-stats", "Remove --disable-log-stat: metrics are always on"),
        ("--dp=2", "vLLM has no --dp; -dp is short for --data-parallel-size", "Remove --dp; raise spec.replicas for more engines"),
        ("--tp=2", "vLLM has no --tp; -tp is short for --tensor-parallel-size", "Remove --tp: spec.parallelism decides it."),
        ("--data-parallel=2", "an abbreviation of --data-parallel-", "Remove --data-parallel; "),
        ("--pipeline=2", "an abbreviation of --pipeline-parallel-size", "Remove --pipeline; raise spec.replicas"),
        ("--ep", "vLLM has no --ep; -ep is short for --enable-expert-parallel", "Write --enable-expert-parallel in full"),
    ],
)
def test_vllm_abbreviations_are_refused_with_what_to_do(token: str, message: str, remedy: str) -> None:
    for release in ("0.26.0", "0.29.0", "0.33.0"):
        (problem,) = problems("vllm", "--trust-remote-code", token, release=release)
        assert problem.field == "spec.engine.extraArgs[1]"
        assert message in problem.message
        assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("token", "remedy"),
    [("--dp=2", "Remove --dp; raise spec.replicas"), ("--tp=2", "spec.parallelism decides it"), ("--page=96", "Write --page-size in full")],
)
def test_sglang_abbreviations_are_refused_with_what_to_do(token: str, remedy: str) -> None:
    (problem,) = problems("sglang", token)
    assert "an abbreviation of" in problem.message
    assert remedy in problem.remedy


@pytest.mark.parametrize("token", ["--no-disable-log-stats", "--no-headless", "--no-max-num-seqs"])
def test_an_owned_flag_is_not_the_user_s_turned_off_either(token: str) -> None:
    (problem,) = problems("vllm", token)
    assert problem.message == f"{token} belongs to the operator"


@pytest.mark.parametrize("off", ["--no-enable-chunked-prefill", "--disable-chunked-prefill", "--no_enable_chunked_prefill"])
def test_a_switch_is_off_by_each_of_its_names(off: str) -> None:
    (problem,) = problems("vllm", off)
    assert problem.message.startswith(off.replace("_", "-"))
    assert "without chunked prefill" in problem.message
    assert problems("vllm", off, "--max-model-len=4096") == []


@pytest.mark.parametrize("on", ["--no-disable-nccl-for-dp-synchronization", "--enable-chunked-prefill"])
def test_a_double_negation_is_on(on: str) -> None:
    assert problems("vllm", on) == []


@pytest.mark.parametrize("extra", ["--disable-prefix-caching", "--no-enable-prefix-caching", "--disable-prefix-cach"])
def test_a_user_s_flag_replaces_the_card_s_by_whatever_name(extra: str) -> None:
    base = request("vllm", default_release("vllm"), "Qwen/Qwen3.5-35B-A3B", 1)
    asked = dataclasses.replace(base, recommended_args=("--enable-prefix-caching",), extra_args=(extra,))
    args = ENGINES["vllm"].launch(asked).args
    assert extra in args
    assert "--enable-prefix-caching" not in args


def test_an_alias_replaces_what_it_is_another_name_for() -> None:
    option = dict.fromkeys(("--ep", "--ep-size"), "--ep-size").get
    merged = merge([], defaults=[], recommended=parsed(["--ep-size=2"]), extra=parsed(["--ep=4"]), option=lambda name: option(name) or name)
    assert merged == ("--ep=4",)


def test_keys_after_a_dot_keep_their_underscores() -> None:
    base = request("vllm", default_release("vllm"), "Qwen/Qwen3.5-35B-A3B", 1)
    launched = ENGINES["vllm"].launch(dataclasses.replace(base, extra_args=("--hf_overrides.rope_theta=1000000",)))
    assert "--hf-overrides.rope_theta=1000000" in launched.args


@pytest.mark.parametrize("name", table_names())
def test_a_flag_is_refused_where_the_release_s_parser_refuses_its_name_or_value(name: str) -> None:
    engine, _, release = name.partition("-")
    real = parser(name)
    tried = {True: 0, False: 0}
    elsewhere = OPTIONS[engine].anywhere.keys() - real._option_string_actions.keys() - RENAMED.keys()
    for full in (*sorted(real._option_string_actions)[::7], *sorted(elsewhere)):
        if not full.startswith("--") or full == "--help":
            continue
        for written in (full, full[:-1], full[:-3], f"{full}x", full.replace("e", "ee", 1)):
            if len(written) <= len("--x"):
                continue
            actions = real._option_string_actions
            begun = [actions[written]] if written in actions else [action for other, action in actions.items() if other.startswith(written)]
            takes = len({id(action) for action in begun}) == 1
            left_away = engine == "sglang" and written.startswith("--no-")
            for argument, right in ((written, takes), (f"{written}=1", takes and begun[0].nargs != 0)):
                found = ENGINES[engine].unknown_flags([argument], release)
                tried[right] += 1
                assert left_away or bool(found) is not right, (argument, [str(problem) for problem in found])
    assert min(tried.values()) > 20
