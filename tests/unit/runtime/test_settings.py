"""The operator's settings from its environment."""

from __future__ import annotations

import pytest

from dflash_controller.runtime.settings import Settings, SettingsError
from dflash_controller.runtime.wiring import metrics_source, operator_defaults, show_settings


def test_nothing_has_to_be_set() -> None:
    settings = Settings.from_environment({"HOSTNAME": "host"})
    assert (settings.namespaces, settings.resync_seconds, settings.leader_election, settings.pod_name) == ((), 300.0, True, "host")
    assert metrics_source(settings).where == "Direct scrape of the engine pods"


def test_values_are_read_and_lists_split() -> None:
    settings = Settings.from_environment(
        {
            "DFLASH_NAMESPACES": "a, b,,",
            "DFLASH_WORKERS": " 3 ",
            "DFLASH_LEADER_ELECTION": "false",
            "DFLASH_ALLOWED_HOST_PATHS": "/mnt/models",
            "DFLASH_PROMETHEUS_URL": "http://prometheus:9090/",
            "DFLASH_PROMETHEUS_MATCHER": "cluster=eu-1,env=prod",
            "DFLASH_PROMETHEUS_REPLICA_LABELS": "ha_pair, site",
            "DFLASH_VLLM_VERSION": "0.26.0",
            "DFLASH_SGLANG_IMAGE": "registry.example/sglang:{version}",
            "DFLASH_METRICS_WINDOW_SECONDS": "120",
            "DFLASH_LEASE_NAME": "",
            "POD_NAMESPACE": "system",
            "POD_NAME": "pod-1",
        }
    )
    assert (settings.namespaces, settings.workers, settings.leader_election) == (("a", "b"), 3, False)
    assert (settings.lease_namespace, settings.lease_name, settings.pod_name) == ("system", "dflash-operator", "pod-1")
    assert (settings.prometheus_url, settings.prometheus_matcher) == ("http://prometheus:9090", {"cluster": "eu-1", "env": "prod"})
    assert settings.prometheus_replica_labels == ("ha_pair", "site")
    defaults = operator_defaults(settings)
    assert (defaults.versions["vllm"], defaults.host_path_roots) == ("0.26.0", ("/mnt/models",))
    assert defaults.images["sglang"] == "registry.example/sglang:{version}"
    assert "{version}" in defaults.images["vllm"]
    assert metrics_source(settings).where == "Prometheus"
    assert show_settings(settings).window_s == 120.0


def test_a_label_of_replicas_must_be_the_name_of_a_label() -> None:
    with pytest.raises(SettingsError, match="PROMETHEUS_REPLICA_LABELS"):
        Settings.from_environment({"DFLASH_PROMETHEUS_REPLICA_LABELS": "a) or up, b"})


def test_a_short_window_shows_its_values_sooner() -> None:
    usual, short = (show_settings(Settings(metrics_window_seconds=window_s)) for window_s in (300.0, 20.0))
    assert (usual.first_s, usual.min_gap_s) == (60.0, 60.0)
    assert (short.first_s, short.min_gap_s) == (10.0, 20.0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DFLASH_WORKERS", "many"),
        ("DFLASH_WORKERS", "0"),
        ("DFLASH_RESYNC_SECONDS", "-1"),
        ("DFLASH_LOG_FORMAT", "xml"),
        ("DFLASH_HTTP_PORT", "70000"),
        ("DFLASH_LEADER_ELECTION", "perhaps"),
        ("DFLASH_ALLOWED_HOST_PATHS", "models"),
        ("DFLASH_ALLOWED_HOST_PATHS", "/mnt/../etc"),
        ("DFLASH_PROMETHEUS_URL", "prometheus:9090"),
        ("DFLASH_HUGGING_FACE_ENDPOINT", "huggingface.co"),
        ("DFLASH_HUGGING_FACE_SECONDS", "0"),
        ("DFLASH_PROMETHEUS_MATCHER", "clus-ter=x"),
        ("DFLASH_PROMETHEUS_MATCHER", "cluster="),
        ("DFLASH_LEASE_DURATION_SECONDS", "5"),
        ("DFLASH_WORKER", "8"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        Settings.from_environment({variable: value})


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("", "https://huggingface.co"), ("https://mirror:8080/hf/", "https://mirror:8080/hf"), ("off", "off"), ("Off", "off")],
)
def test_the_model_hub_is_huggingface_a_mirror_or_none(text: str, endpoint: str) -> None:
    assert Settings.from_environment({"DFLASH_HUGGING_FACE_ENDPOINT": text}).hugging_face_endpoint == endpoint


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"DFLASH_WORKERS.*DFLASH_HTTP_PORT"):
        Settings.from_environment({"DFLASH_WORKERS": "x", "DFLASH_HTTP_PORT": "y"})


def test_variables_that_kubernetes_makes_of_services_are_no_mistake() -> None:
    links = {
        "DFLASH_OPERATOR_SERVICE_HOST": "10.0.0.1",
        "DFLASH_OPERATOR_SERVICE_PORT": "8080",
        "DFLASH_OPERATOR_SERVICE_PORT_HTTP": "8080",
        "DFLASH_OPERATOR_PORT": "tcp://10.0.0.1:8080",
        "DFLASH_OPERATOR_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "DFLASH_OPERATOR_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert Settings.from_environment(links).http_port == 8080


@pytest.mark.parametrize(
    ("addresses", "families"),
    [
        ("", ()),
        ("10.1.2.3", ("IPv4",)),
        ("fd00::7", ("IPv6",)),
        ("10.1.2.3,fd00::7", ("IPv4", "IPv6")),
        ("fd00::7,10.1.2.3", ("IPv6", "IPv4")),
    ],
)
def test_engines_listen_on_the_families_of_the_operator_s_own_pod(addresses: str, families: tuple[str, ...]) -> None:
    settings = Settings.from_environment({"POD_IPS": addresses})
    assert operator_defaults(settings).pod_ip_families == families


def test_the_setting_replaces_the_pod_s_addresses() -> None:
    assert Settings.from_environment({"POD_IPS": "10.1.2.3", "DFLASH_POD_IPS": "fd00::1"}).pod_ip_families == ("IPv6",)


def test_an_address_of_the_pod_must_be_one() -> None:
    with pytest.raises(SettingsError, match="POD_IPS"):
        Settings.from_environment({"DFLASH_POD_IPS": "chat"})
