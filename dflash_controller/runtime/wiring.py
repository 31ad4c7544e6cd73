"""Builds the parts of other layers from the operator's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.hub.client import HubClient, HubSettings
from dflash_controller.observe.pipeline.source import Source
from dflash_controller.observe.sources.prometheus.client import PrometheusSettings
from dflash_controller.observe.sources.prometheus.counter_snapshots import TrialSettings
from dflash_controller.observe.sources.prometheus.source import PrometheusSource
from dflash_controller.observe.sources.scrape.source import Scraper, ScrapeSettings
from dflash_controller.observe.status_values.display import DisplaySettings
from dflash_controller.runtime.hub_reader import HubReader
from dflash_controller.runtime.settings import HUB_OFF, Settings


def operator_defaults(settings: Settings) -> OperatorDefaults:
    """Returns the operator's defaults for fields that a DFlashDeployment omits."""
    known = OperatorDefaults()
    versions = {"sglang": settings.sglang_version, "vllm": settings.vllm_version}
    images = {"sglang": settings.sglang_image, "vllm": settings.vllm_image}
    return OperatorDefaults(
        versions={**known.versions, **{engine: version for engine, version in versions.items() if version}},
        images={**known.images, **{engine: image for engine, image in images.items() if image}},
        pod_ip_families=settings.pod_ip_families,
        fetch_image=settings.fetch_image or "",
        host_path_roots=settings.allowed_host_paths,
    )


def metrics_source(settings: Settings) -> Source:
    """Returns Prometheus as the source if it is configured, else direct scrapes."""
    if settings.prometheus_url is None:
        return Scraper(ScrapeSettings(window_s=settings.metrics_window_seconds, max_age_s=3 * settings.scrape_seconds))
    prometheus = PrometheusSettings(
        url=settings.prometheus_url,
        bearer_token_file=settings.prometheus_bearer_token_file,
        basic_auth_file=settings.prometheus_basic_auth_file,
        ca_file=settings.prometheus_ca_file,
        cert_file=settings.prometheus_cert_file,
        key_file=settings.prometheus_key_file,
        tenant=settings.prometheus_tenant,
        matcher=settings.prometheus_matcher,
        replica_labels=settings.prometheus_replica_labels,
    )
    window_s = settings.metrics_window_seconds
    return PrometheusSource(prometheus, window_s, trials=TrialSettings(window_s, step_s=settings.scrape_seconds))


def hub_reader(settings: Settings, changed: Callable[[Key], None]) -> HubReader:
    """Returns the reader of the model hub; it asks nothing if the hub is switched off."""
    endpoint = settings.hugging_face_endpoint
    if endpoint == HUB_OFF:
        return HubReader(None, None, changed, refresh_s=settings.hugging_face_seconds)
    return HubReader(HubClient(HubSettings(endpoint)), endpoint, changed, refresh_s=settings.hugging_face_seconds)


def show_settings(settings: Settings) -> DisplaySettings:
    """How often metrics are taken, over which window. A short window shows its first value early, and the next ones sooner."""
    usual, window_s = DisplaySettings(), settings.metrics_window_seconds
    return replace(
        usual,
        window_s=window_s,
        interval_s=settings.scrape_seconds,
        first_s=min(usual.first_s, window_s / 2),
        min_gap_s=min(usual.min_gap_s, window_s),
    )
