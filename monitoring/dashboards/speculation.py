"""Speculation: whether the drafter fits the traffic, and whether speculation is worth it. Pure."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from dflash_controller.analysis.primary import COLLAPSED
from dflash_controller.planning.revisions.drafter_health import RECOVERED
from monitoring.dashboards import samples
from monitoring.dashboards.build import (
    BY,
    NAME,
    POD_KEYS,
    REVISION_KEYS,
    Event,
    Rows,
    appeared,
    by_role,
    dashboard,
    in_role,
    of,
    of_stable,
    runbook,
    variables,
)
from monitoring.dashboards.panels import Column, Query, heat, lines, one, rows, scatter

UID = "dflash-speculation"
REVISIONS = 'revision=~"$revision"'
NO_TUNER = "The tuner is off, or has measured too little traffic yet"
NO_POSITIONS = "SGLang does not export acceptance by position; vLLM does"
SIDES_AT = f"{NAME} {{{{role}}}} {{{{revision}}}} at {{{{block_size}}}}"
EQUAL_BLOCKS = (
    "Compare only lines of equal block size (at the end of the name): a smaller block accepts fewer tokens per step and is not worse for"
    " it, so a change of block size is judged by its speed."
)
"""What every panel says that shows acceptance lengths over time."""
LIMITS = [(None, "transparent"), (COLLAPSED, "red"), (RECOVERED, "orange")]
ACCEPTING = [(None, "red"), (COLLAPSED, "orange"), (RECOVERED, "green")]
"""A drafter above the upper limit works, one below the lower limit has collapsed; see the runbook."""


def revision_marks() -> Event:
    """New roles of revisions, as marks on every panel. With several deployments, the text of a mark says of which one it is."""
    return Event(
        "Revision",
        appeared("dflash:revision_info", "revision, role", 'role=~"stable|candidate|failed"'),
        f"{NAME}: {{{{revision}}}} is {{{{role}}}}",
        "purple",
    )


def decisions() -> list[Event]:
    """Decisions of the tuner and new roles of revisions, as marks on every panel."""
    tuner = appeared("dflash:tuner_state", "state, reason", 'state!="Frozen"')
    return [Event("Tuner", tuner, f"{NAME}: {{{{state}}}}, {{{{reason}}}}", "blue"), revision_marks()]


def speculation() -> models.Dashboard:
    """Returns the dashboard: acceptance, its cost and its gain, stable beside candidate."""
    return dashboard(
        UID,
        "DFlash / Speculation",
        "Acceptance length of stable and candidate, drafted, accepted and wasted tokens, measured and predicted speed by block size.",
        variables(several=False, revision=True),
        [_now(), _acceptance(), _tokens(), _speed()],
        guide="reference/dashboards.md#speculation",
        events=decisions(),
    )


def _now() -> Rows:
    def stable(expr: str) -> str:
        return of_stable(f"({expr})")

    return Rows(
        "Now",
        [
            one(
                "Acceptance length",
                "Tokens per verify step of the stable revision over the last two minutes, for each selected deployment."
                " 1: no draft is accepted.",
                "none",
                stable(samples.acceptance_length(REVISION_KEYS, REVISIONS)),
                levels=ACCEPTING,
                nothing=samples.NO_TRAFFIC,
                span=5,
                decimals=2,
                legend=NAME,
            ).links([runbook("speculation-collapsed")]),
            one(
                "Active block size",
                "The largest block size of the stable revision, for each selected deployment; 1: speculation is off.",
                "none",
                f"max by ({BY}) ({of('dflash:deployment_block_size')})",
                span=5,
                legend=NAME,
            ),
            one(
                "Drafts accepted",
                "Share of the stable revision's drafted tokens that the target accepted, for each selected deployment.",
                "percentunit",
                stable(samples.ratio("accepted_tokens", "drafted_tokens", REVISION_KEYS, REVISIONS, least=samples.STEPS)),
                span=5,
                nothing=samples.NO_TRAFFIC,
                legend=NAME,
            ),
            one(
                "Tokens per second of a replica",
                "Of a busy replica of the stable revision: requests in a step × tokens per step ÷ step time, for each selected deployment.",
                "short",
                stable(samples.stepped("replica_speed", REVISIONS)),
                span=5,
                nothing=samples.NO_TRAFFIC,
                legend=NAME,
            ),
            one(
                "Requests in a step",
                "Mean batch of a replica that is not idle, from counters; the stable revision of each selected deployment.",
                "short",
                stable(samples.stepped("concurrency", REVISIONS)),
                nothing=samples.NO_TRAFFIC,
                span=4,
                decimals=1,
                legend=NAME,
            ),
        ],
    )


def _acceptance() -> Rows:
    at = f"avg by (position) ({samples.stepped('acceptance_at_position', REVISIONS, counter='steps')})"
    padded = f'label_replace({at}, "position", "0$1", "position", "(.)")'
    parts = ", ".join(f'"{key}"' for key in samples.BLOCK_KEYS)

    def cloud(expr: str) -> str:
        """A cloud of points needs one label that names it."""
        return f'max by (revision) (label_join({expr}, "revision", "/", {parts}))'

    return Rows(
        "Acceptance",
        [
            lines(
                "Acceptance length: stable and candidate",
                "1 + accepted ÷ verify steps, from counters; no value without traffic. A candidate of the same block size must not stay"
                f" below the stable revision. {EQUAL_BLOCKS} Below 1.3 (red line) the drafter has collapsed, above 1.6 it works.",
                "none",
                Query(f"{samples.acceptance_length(samples.BLOCK_KEYS, REVISIONS)} {in_role()}", SIDES_AT),
                levels=LIMITS,
                least=1,
            ).links([runbook("speculation-collapsed"), runbook("acceptance-dropped"), runbook("acceptance-drift")]),
            heat(
                "Acceptance by position (vLLM)",
                "Share of verify steps in which the draft at this position was accepted; position 0 is the first draft. Drafts in rows"
                " that stay red are wasted: a smaller block size is enough. Mean over the selected deployments and revisions on vLLM; a"
                " collapsed drafter on SGLang is not in it.",
                "percentunit",
                Query(padded, "{{position}}"),
                "Position of the draft",
                nothing=NO_POSITIONS,
            ),
            scatter(
                "Acceptance × concurrency",
                "One point per moment and revision (its name ends in the block size): tokens per verify step against requests in a step. A"
                " flat cloud is normal: load"
                " changes the step time, not the acceptance. If it falls to the right, the traffic changes with the load.",
                Column("Requests in a step", cloud(samples.stepped("concurrency", REVISIONS))),
                Column("Acceptance length", cloud(samples.acceptance_length(samples.BLOCK_KEYS, REVISIONS))),
                "revision",
            ),
            lines(
                "Acceptance length of each pod",
                f"A single pod near 1 has usually loaded different weights than the others. {EQUAL_BLOCKS}",
                "none",
                Query(
                    samples.acceptance_length((*POD_KEYS, "block_size"), REVISIONS, level="pod"), "{{namespace}}/{{pod}} at {{block_size}}"
                ),
                levels=LIMITS,
                least=1,
            ).links([runbook("speculation-collapsed")]),
        ],
    )


def _tokens() -> Rows:
    def tokens(what: str) -> Query:
        return Query(f"sum by ({BY}) ({of(f'dflash:revision_{what}_tokens:rate2m', REVISIONS)})", f"{what} {NAME}")

    wasted = samples.ratio("wasted_tokens", "drafted_tokens", samples.BLOCK_KEYS, REVISIONS, least=samples.STEPS)
    return Rows(
        "Tokens",
        [
            lines(
                "Drafted tokens: accepted and wasted",
                "Per second. Together they are the drafted tokens, block size − 1 for each verify step. Wasted ones cost throughput when"
                f" batches are large. {samples.OVER_PODS}",
                "short",
                tokens("accepted"),
                tokens("wasted"),
                stacked=True,
            ),
            lines(
                "Wasted share of drafts",
                "Wasted ÷ drafted of each revision. It is normally high with large block sizes; what matters is the speed by block size.",
                "percentunit",
                Query(f"{wasted} {in_role()}", SIDES_AT),
            ),
        ],
    )


def _speed() -> Rows:
    speed = samples.stepped("replica_speed", REVISIONS)
    used = f"(1 + {samples.ratio('drafted_tokens', 'steps', REVISION_KEYS, REVISIONS, least=samples.STEPS)})"
    predicted = samples.at_the_time(of("dflash:tuner_predicted_tokens_per_second"))
    return Rows(
        "Speed by block size",
        [
            lines(
                "Speed by block size: measured and predicted",
                "Tokens per second of one busy replica by block size, mean of two minutes. Dashed: the tuner's prediction for the same"
                " minutes; block size 1 is speculation off. Speed follows the load, so compare block sizes at one moment only; the load is"
                " in the next panel. The prediction for the active block size should be near the measured line; the tuner recommends the"
                " highest.",
                "short",
                Query(f"max by ({BY}, block_size) ({speed})", f"measured {NAME} at {{{{block_size}}}}"),
                Query(predicted, f"predicted {NAME} at {{{{block_size}}}}", dashed=True),
            ).links([runbook("speculation-slower-than-baseline")]),
            lines(
                "Requests in a step over time",
                "Load of a busy replica by block size. Where it falls, the speed falls with it, whatever the block size.",
                "none",
                Query(f"max by ({BY}, block_size) ({samples.stepped('concurrency', REVISIONS)})", f"{NAME} at {{{{block_size}}}}"),
                span=6,
                nothing=samples.NO_TRAFFIC,
            ),
            lines(
                "Time of a step",
                "Seconds of one verify step by block size; grows with block size × requests in a step.",
                "s",
                Query(f"max by ({BY}, block_size) ({samples.stepped('step_seconds', REVISIONS)})", f"{NAME} at {{{{block_size}}}}"),
                span=6,
            ),
            lines(
                "Block size over time",
                "Active block size, and the mean of what was drafted: the two differ if vLLM follows a schedule.",
                "none",
                Query(of("dflash:deployment_block_size"), f"active {NAME}"),
                Query(of_stable(used), f"used {NAME}", dashed=True),
            ),
            rows(
                "Revisions",
                "The selected revisions that serve, with their acceptance and speed.",
                REVISION_KEYS,
                [
                    Column("Role", by_role("dflash:revision_pods", ".+", REVISIONS), label="role"),
                    Column("Block size", of("dflash:revision_pods", REVISIONS), label="block_size"),
                    Column("Acceptance length", samples.acceptance_length(REVISION_KEYS, REVISIONS), decimals=2),
                    Column("Tokens/s of a replica", speed, decimals=0),
                    Column("Requests in a step", samples.stepped("concurrency", REVISIONS), decimals=1),
                ],
                span=12,
            ),
        ],
    )
