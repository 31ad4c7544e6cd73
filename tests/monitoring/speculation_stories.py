"""When alerts on drafters, the tuner and rollouts fire."""

from __future__ import annotations

from tests.monitoring.engines import DEPLOYMENT, REVISION, role, sglang, vllm
from tests.monitoring.story import Firing, Series, Story, gauge, label_set

_VLLM = REVISION | {"engine": "vllm"}
_SGLANG = REVISION | {"engine": "sglang"}
_OF_DAYS = "1h"
"""Between samples where the story is of days."""
_DAY = 24
"""Samples of a day then."""


def _of_revision(**values: str) -> Series:
    return {f"dflash:revision_{name}{label_set(**_VLLM)}": value for name, value in values.items()}


def _of_deployment(**values: str) -> Series:
    return {f"dflash:deployment_{name}{label_set(**DEPLOYMENT)}": value for name, value in values.items()}


def _rates(**values: str) -> Series:
    return {f"dflash:revision_{name}:rate2m{label_set(**_VLLM)}": value for name, value in values.items()}


def _phase(phase: str, *load_samples: tuple[float | None, int]) -> Series:
    return {f"dflash_rollout_phase{label_set(phase=phase, **DEPLOYMENT)}": gauge(*load_samples)}


def _collapsed() -> list[Story]:
    name = "DFlashAcceptanceCollapsed"
    words = "team/qwen: the drafter of r1 has collapsed: 1.20 tokens per verify step (1 means that no draft is accepted)"
    on_vllm, on_sglang = Firing(words, _VLLM), Firing(words, _SGLANG)
    return [
        Story(
            name,
            "vLLM accepts one draft in five steps, then four a step",
            vllm("a", (600, 0.2, 15), (600, 4, 10)) | role("stable", 25),
            {"6m": [], "12m": [on_vllm], "20m": []},
        ),
        Story(
            name,
            "SGLang likewise; it then idles, and its gauge stays where it was",
            sglang("a", (600, 0.2, 15), (0, 0, 10)) | role("stable", 25),
            {"6m": [], "12m": [on_sglang], "20m": []},
        ),
        Story(name, "the operator is gone, so nobody is a candidate", vllm("a", (600, 0.2, 15)), {"12m": [on_vllm]}),
        Story(
            name,
            "all pods count together",
            vllm("a", (600, 0.2, 15)) | vllm("b", (600, 0.5, 15)) | role("stable", 15),
            {"14m": []},
        ),
        Story(name, "1.3 tokens per step", vllm("a", (600, 0.3, 20)) | role("stable", 20), {"14m": [], "20m": []}),
        Story(name, "1,950 steps in 5 minutes", vllm("a", (390, 0.2, 20)) | role("stable", 20), {"20m": []}),
        Story(
            name,
            "for four minutes",
            vllm("a", (600, 4, 5), (600, 0.2, 4), (600, 4, 10)) | role("stable", 19),
            {f"{minute}m": [] for minute in range(7, 16)},
        ),
        Story(
            name,
            "a block of 2 cannot reach more than 2: 1.25",
            vllm("a", (600, 0.25, 20), block_size="2") | role("stable", 20),
            {"20m": []},
        ),
        Story(name, "a candidate", vllm("a", (600, 0.2, 20)) | role("candidate", 20), {"20m": []}),
    ]


def _dropped() -> list[Story]:
    name = "DFlashAcceptanceDropped"

    def week(before: int, now: float) -> Series:
        levels = _of_revision(acceptance_length=gauge((6, before), (now, 9), (6, 9)), pods=gauge((2, before + 18)))
        return levels | _rates(steps=gauge((10, before + 18)))

    words = "team/qwen: r1 accepts 3.50 tokens per verify step, less than 60 % of its week's median"
    return [
        Story(
            name,
            "from 6 to 3.5 after a week",
            week(7 * _DAY, 3.5),
            {"168h": [], "169h": [Firing(words, _VLLM)], "178h": []},
            _OF_DAYS,
        ),
        Story(name, "3.6 is 60 %", week(7 * _DAY, 3.6), {"169h": [], "170h": []}, _OF_DAYS),
        Story(name, "a revision of half a day has no week", week(_DAY // 2, 3.5), {"13h": [], "14h": []}, _OF_DAYS),
    ]


def _drift() -> list[Story]:
    name = "DFlashAcceptanceDrift"

    def days(steps: float, now: float, before: int = 7) -> Series:
        span = before * _DAY + 2 * _DAY
        rates = _rates(
            steps=gauge((steps, span)), accepted_tokens=gauge((5 * steps, before * _DAY), (now * steps, _DAY), (5 * steps, _DAY))
        )
        return rates | _of_revision(pods=gauge((2, span)))

    words = "team/qwen: acceptance of r1 over the last day is 86.86% of the week's"
    return [
        Story(
            name,
            "from 6 tokens to 5.1 for a day",
            days(1, 4.1),
            {"168h": [], "191h": [Firing(words, _VLLM)], "214h": []},
            _OF_DAYS,
        ),
        Story(name, "from 6 to 5.35: 91 %", days(1, 4.35), {"190h": [], "191h": []}, _OF_DAYS),
        Story(name, "too few steps a day to say so", days(0.34, 4.1), {"190h": [], "191h": []}, _OF_DAYS),
        Story(name, "a revision that is not three days old", days(1, 4.1, before=1), {"47h": []}, _OF_DAYS),
    ]


def _slower() -> list[Story]:
    name = "DFlashSpeculationSlowerThanBaseline"

    def speed(off: float | None, *measured: tuple[float, int]) -> Series:
        predicted = {f"dflash_tuner_predicted_tokens_per_second{label_set(block_size='1', **DEPLOYMENT)}": gauge((off, 60))}
        return _of_revision(replica_speed=gauge(*measured)) | predicted | role("stable", 60)

    words = "team/qwen: with speculation a replica generates 10 % fewer tokens per second than without, at the current load"
    return [
        Story(name, "900 of 1,000", speed(1000, (900, 30), (1100, 30)), {"14m": [], "16m": [Firing(words, DEPLOYMENT)], "35m": []}),
        Story(name, "951 of 1,000", speed(1000, (951, 60)), {"30m": []}),
        Story(name, "the tuner says nothing of off", speed(None, (900, 60)), {"30m": []}),
    ]


def _tuner() -> list[Story]:
    held = {f"dflash_tuner_state{label_set(state='Held', reason='ModelMismatch', **DEPLOYMENT)}": gauge((1, 90), (None, 30))}
    words = "team/qwen: the tuner has made no decision for an hour: ModelMismatch"
    labels = DEPLOYMENT | {"reason": "ModelMismatch"}
    often = "team/qwen: the block size changed 4 times in a day"
    four = _of_deployment(block_size=gauge((16, 3), (8, 3), (16, 3), (8, 3), (16, 2 * _DAY)))
    three = _of_deployment(block_size=gauge((16, 3), (8, 3), (16, 3), (8, 2 * _DAY)))
    return [
        Story(
            "DFlashTunerHeld",
            "for an hour",
            held | _of_deployment(pods=gauge((2, 120))),
            {"59m": [], "61m": [Firing(words, labels)], "100m": []},
        ),
        Story("DFlashTunerHeld", "scaled to zero", held, {"80m": []}),
        Story("DFlashTunerFlapping", "four changes", four, {"2h": [], "13h": [Firing(often, DEPLOYMENT)], "40h": []}, _OF_DAYS),
        Story("DFlashTunerFlapping", "three changes", three, {"13h": [], "20h": []}, _OF_DAYS),
    ]


def _rollouts() -> list[Story]:
    two = {f"dflash:revision_pods{label_set(**_VLLM | {'revision': revision})}": gauge((1, 90)) for revision in ("r1", "r2")}
    moving = {f"dflash:revision_pods{label_set(**_VLLM)}": "1+1x40"}
    still = {f"dflash:revision_pods{label_set(**_VLLM)}": gauge((3, 40))}
    held = "team/qwen: the rollout is held and waits for your decision"
    back = "team/qwen: the last change was rolled back: it was worse or did not start"
    stuck = "team/qwen: no replica started or stopped for two hours in phase Progressing"
    skew = "team/qwen: 2 revisions serve although no rollout is in progress"

    def of(phase: str) -> dict[str, str]:
        return DEPLOYMENT | {"phase": phase}

    return [
        Story("DFlashRolloutHeld", "Held", _phase("Held", (1, 20), (None, 10)), {"4m": [], "6m": [Firing(held, of("Held"))], "25m": []}),
        Story("DFlashRolloutHeld", "on its way there", _phase("Analyzing", (1, 30)), {"20m": []}),
        Story(
            "DFlashRolloutRolledBack",
            "RolledBack, until the spec changes",
            _phase("RolledBack", (1, 20), (None, 20)) | _phase("Preparing", (None, 20), (1, 20)),
            {"2m": [Firing(back, of("RolledBack"))], "30m": []},
        ),
        Story("DFlashRolloutRolledBack", "still rolling back", _phase("RollingBack", (1, 30)), {"20m": []}),
        Story(
            "DFlashRolloutStuck",
            "Progressing, and nothing moves",
            _phase("Progressing", (1, 20), (None, 10)) | still,
            {"110m": [], "120m": [Firing(stuck, of("Progressing"))], "220m": []},
            "10m",
        ),
        Story("DFlashRolloutStuck", "replica after replica", _phase("Progressing", (1, 40)) | moving, {"130m": [], "300m": []}, "10m"),
        Story("DFlashRolloutStuck", "Preparing waits for a window", _phase("Preparing", (1, 40)) | still, {"300m": []}, "10m"),
        Story(
            "DFlashVersionSkew",
            "two revisions, and none is rolled out",
            _phase("Completed", (1, 60), (None, 30)) | _phase("Progressing", (None, 60), (1, 30)) | two,
            {"29m": [], "31m": [Firing(skew, DEPLOYMENT)], "70m": []},
        ),
        Story("DFlashVersionSkew", "two revisions in a rollout", _phase("Analyzing", (1, 90)) | two, {"80m": []}),
    ]


def stories() -> list[Story]:
    return [*_collapsed(), *_dropped(), *_drift(), *_slower(), *_tuner(), *_rollouts()]
