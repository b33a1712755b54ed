"""`render keda`: objects that KEDA and Kubernetes accept, and queries that give one number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import render_tools
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.render import fleet_facts, keda
from watchkeeper.rules import series_notation
from watchkeeper.store.head import head

SERVICES = ("serving/llama=llama-3-8b", "batch/embed=e5-large")
SETTINGS = config.Settings(
    fleet=config.FleetSettings(cluster="prod-1"), render=config.RenderSettings(services=SERVICES)
)


def found(settings: config.Settings = SETTINGS) -> dict[str, Any]:
    return {file.path: yaml.safe_load(file.text) for file in keda.files(settings)}


def test_each_service_gets_a_scaled_object_with_queue_load_and_latency() -> None:
    spec = found()["keda/serving-llama.yaml"]["spec"]
    assert spec["scaleTargetRef"]["name"] == "llama"
    assert [trigger["metricType"] for trigger in spec["triggers"]] == ["AverageValue", "AverageValue", *["Value"] * 3]
    # KEDA reads every value of the metadata as text.
    assert {type(value) for trigger in spec["triggers"] for value in trigger["metadata"].values()} == {str}


@pytest.mark.slow
def test_scaled_objects_fit_the_types_of_keda(tmp_path: Path) -> None:
    custom = [one for path, one in found().items() if path.startswith("keda/")]
    render_tools.check_custom(custom, "keda/keda.sh/v1alpha1", tmp_path)


@pytest.mark.slow
def test_plain_autoscalers_are_valid_and_ask_for_what_the_adapter_gives() -> None:
    rules = found()["hpa/prometheus-adapter-values.yaml"]["rules"]["external"]
    asked = []
    with render_tools.package("kubernetes_validate") as validator:
        for path, one in found().items():
            if path.startswith("hpa/") and one.get("kind"):
                assert validator.validate(one, "1.37", strict=True)
                asked += [metric["external"]["metric"]["name"] for metric in one["spec"]["metrics"]]
    assert sorted(asked) == sorted(rule["name"]["as"] for rule in rules)


def test_every_recorded_series_that_is_asked_for_is_recorded_by_a_shipped_rule() -> None:
    shipped = "".join(fleet_facts.rule_texts(SETTINGS).values())
    queries = [trigger["metadata"]["query"] for trigger in found()["keda/serving-llama.yaml"]["spec"]["triggers"]]
    names = ("inference_requests_waiting", "watchkeeper:inference_replica_requests:max1d")
    for name, query in zip((*names, *["slo:error_ratio:rate5m"] * 3), queries, strict=True):
        assert name in query
        assert f"record: {name}\n" in shipped


@pytest.mark.parametrize(("share", "burn"), [(0.0, 0.0), (0.01, 1.0), (0.5, 1.5)])
def test_a_burning_budget_asks_for_half_as_many_replicas_more_at_most(share: float, burn: float) -> None:
    """0.01 of the first tokens may be late, so that a share of 0.01 is a burn of 1."""
    engine = embedded.EmbeddedEngine(head.Head())
    about = 'cluster="prod-1",model_name="llama-3-8b"'
    for name, value in (
        (f'slo:error_ratio:rate5m{{slo="inference-first-token",{about}}}', share),
        (f"inference_requests_waiting{{{about}}}", 70),
    ):
        engine.appender.append([Sample(series_notation.parse_labels(name), 60_000, value)])
    waiting, _, *late = keda.signals(
        keda.ScaledService("serving", "llama", "llama-3-8b"), keda.latency_objectives(SETTINGS), "prod-1"
    )
    values = [list(engine.instant(one.query, 60_000).latest().values()) for one in (waiting, *late)]
    # The other two objectives have no samples of this model. A missing metric would keep an HPA from removing replicas.
    assert values == [[70], [burn], [0], [0]]


def test_a_server_that_has_the_samples_is_asked_without_the_hubs_token() -> None:
    query = config.QuerySettings(engine=config.QueryEngine.PROMETHEUS, url="http://prometheus.monitoring:9090")
    settings = config.Settings(query=query, render=config.RenderSettings(services=SERVICES))
    trigger = found(settings)["keda/serving-llama.yaml"]["spec"]["triggers"][0]
    assert trigger["metadata"]["serverAddress"] == "http://prometheus.monitoring:9090"
    assert "authenticationRef" not in trigger
    assert not [path for path in found(settings) if path.endswith("-access.yaml")]


@pytest.mark.parametrize("service", ["llama", "serving/llama", "serving/llama=", 'serving/llama=a"} or up'])
def test_a_service_that_cannot_be_read_is_refused(service: str) -> None:
    with pytest.raises(SettingsError, match=r"render\.services"):
        keda.files(config.Settings(render=config.RenderSettings(services=(service,))))
