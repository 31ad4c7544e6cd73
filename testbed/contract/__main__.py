"""``python -m testbed.contract`` checks every golden and every refused command line with the real parsers and with ours.

It prints accepted and refused counts by engine and release, then ``N passed, N failed``. The exit status is 1 if a verdict differs from the
expected one, 2 if an environment could not be built or a real parser broke.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from testbed.contract.driver import DriverError
from testbed.contract.environments import RELEASES, BuildError, ready
from testbed.contract.judge import Outcome, check_release, refused_by_us


def main() -> int:
    try:
        print("Engine environments (about 3.6 GB, built once):", flush=True)
        environments = ready()
        with ThreadPoolExecutor(max_workers=2) as pool:
            outcomes = list(pool.map(lambda release: check_release(environments, release), RELEASES))
    except (BuildError, DriverError) as error:
        print(error, file=sys.stderr)
        return 2
    ours = refused_by_us()
    print(f"\n{'engine':<16}{'accepted':>10}{'refused':>10}{'wrong':>8}{'combinations refused by both, by us alone':>46}")
    for release, outcome in zip(RELEASES, outcomes, strict=True):
        both = f"{outcome.refused_by_both}, {outcome.refused_by_us}"
        print(f"{release!s:<16}{outcome.accepted:>10}{outcome.refused:>10}{len(outcome.failures):>8}{both:>46}")
    print(f"{'operator':<16}{'':>10}{ours.refused:>10}{len(ours.failures):>8}   what the engines let through and must not")
    print()
    everything = [*outcomes, ours]
    for outcome in everything:
        print("".join(f"FAILED {failure}\n" for failure in outcome.failures), end="")
    passed, failed = _sum(everything)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _sum(outcomes: list[Outcome]) -> tuple[int, int]:
    failed = sum(len(outcome.failures) for outcome in outcomes)
    return sum(outcome.checked for outcome in outcomes) - failed, failed


if __name__ == "__main__":
    sys.exit(main())
