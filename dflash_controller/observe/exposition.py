"""From the text of a /metrics page to the few figures needed of it. Pure."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dflash_controller.observe.dialect import MetricDialect, needed_metrics
from dflash_controller.observe.series import Page, Sample, page


def read_page(text: str, dialect: MetricDialect) -> Page | None:
    """The page of one scrape, None where it holds no metric of this engine at all. Raises ValueError on malformed lines.

    Only lines of needed samples reach the parser: a real page of 57 kB parses whole in about 10 ms, filtered in well under one. Comment
    lines are dropped too: without a type, the parser gives every sample under its exposed name.
    """
    needed = needed_metrics(dialect.series)
    lines = [line for line in text.splitlines() if line.startswith(dialect.prefix)]
    if not lines:
        return None
    wanted = "\n".join(line for line in lines if line.partition("{")[0].partition(" ")[0] in needed) + "\n"
    samples = (
        Sample(sample.name, sample.labels, sample.value) for family in text_string_to_metric_families(wanted) for sample in family.samples
    )
    return page(dialect.series, samples)
