"""``python -m testbed.contract.sweep``: each switch and each choice of a release, alone on the operator's command line.

It prints what the engine's own resolution refuses and the operator lets through, with the engine's message: what needs.yaml or a rule
should say, unless the engine refuses it for the value or the target alone. It takes one to three minutes per release.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import LaunchRequest
from testbed.contract.combinations import Combination
from testbed.contract.driver import DriverError, ask
from testbed.contract.environments import RELEASES, Environments, Release, ready
from testbed.contract.examples import B200, H100
from testbed.contract.judge import FAKE_GPUS, combination_line
from testbed.simulator.option_table import facts

_SPOILS_THE_NEXT = re.compile(r"return-routed-experts|return-sampling-mask|sleep-mode|cumem-allocator")
"""Switches of vLLM that change its cached model configuration, or need a driver."""


def flags(release: Release) -> Iterator[str]:
    """Yields every name of every switch, and every choice, of the release's option table."""
    for option in facts(f"{release.engine}-{release.version}")["options"]:
        names = [name for name in option["names"] if name.startswith("--") and not _SPOILS_THE_NEXT.search(name)]
        if not names or option.get("action") == "version" or "error" in option:
            continue
        if option.get("action") == "boolean":
            yield from names
        elif option.get("nargs") == 0:
            yield names[0]
        else:
            yield from (f"{names[0]}={choice}" for choice in option.get("choices", ()))


def passed_on(environments: Environments, release: Release, gpu: str, dense: bool, tensor: int) -> Iterator[str]:
    """Yields each flag that the operator lets through and the engine refuses, with its message."""
    engine = ENGINES[release.engine]
    cases = [Combination(release.engine, (flag,), None, gpu=gpu, dense=dense, tensor=tensor) for flag in flags(release)]
    cases = [case for case in cases if not engine.problems(_request(case, release))]
    lines = [combination_line(environments, release, case, case.flags, None) for case in cases]
    device = ["--device=cuda"] if release.engine == "sglang" else []
    verdicts = _verdicts(environments, release, gpu, [([*line.args, *device], line.env) for line in lines])
    for case, verdict in zip(cases, verdicts, strict=True):
        if not verdict["accepted"]:
            yield f"{case.name}: {' '.join(verdict['error'].split())[:300]}"


def _request(case: Combination, release: Release) -> LaunchRequest:
    return case.request(release.version, case.flags)


def _verdicts(
    environments: Environments, release: Release, gpu: str, lines: list[tuple[Sequence[str], Mapping[str, str]]]
) -> list[dict[str, Any]]:
    """Asks for all lines; where the driver breaks, asks again without that line."""
    left_out: dict[int, dict[str, Any]] = {}
    while True:
        asked = [i for i in range(len(lines)) if i not in left_out]
        try:
            _, found = ask(environments, release, FAKE_GPUS[gpu], [lines[i] for i in asked])
        except DriverError as error:
            where = re.search(r"broke at line (\d+)", str(error))
            if where is None:
                raise
            left_out[asked[int(where[1]) - 1]] = {"accepted": False, "error": f"not judged: {str(error)[-200:]}"}
            continue
        answers = {**left_out, **dict(zip(asked, found, strict=True))}
        return [answers[i] for i in range(len(lines))]


def main() -> None:
    """Prints the findings of the releases that are named, or of all."""
    parser = argparse.ArgumentParser(prog="python -m testbed.contract.sweep", description=__doc__)
    parser.add_argument("release", nargs="*", help="for instance sglang-0.5.23; default: all")
    wanted = parser.parse_args().release
    environments = ready()
    for release in RELEASES:
        if wanted and f"{release.engine}-{release.version}" not in wanted:
            continue
        for gpu, dense, tensor in ((H100, True, 1), (B200, release.engine == "vllm", 2)):
            found = list(passed_on(environments, release, gpu, dense, tensor))
            print(f"{release} on {gpu}: {len(found)}", *found, sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
