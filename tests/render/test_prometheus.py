"""What `render prometheus` writes is what the hub reads and evaluates, and Prometheus takes it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import servers
from tests.render import fleet_settings
from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.hub import rule_loops
from watchkeeper.render import prometheus
from watchkeeper.rules import reload, rulefile
from watchkeeper.scrape import dcgm_names, prometheus_config, relabel


def written(folder: Path, settings: config.Settings) -> Path:
    for file in prometheus.files(settings):
        path = folder / "out" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    return folder / "out"


def jobs(settings: config.Settings) -> dict[str, Any]:
    plain = yaml.safe_load(prometheus.config_text(settings))
    return {job["job_name"]: job for job in plain["scrape_configs"]}


@pytest.mark.servers
@pytest.mark.parametrize("is_configured", [True, False])
def test_promtool_accepts_the_configuration_and_every_rule(tmp_path: Path, is_configured: bool) -> None:
    settings = fleet_settings.load(tmp_path) if is_configured else config.Settings()
    token = tmp_path / "token"
    token.write_text("secret")
    out = written(tmp_path, settings)
    main = out / "prometheus.yml"
    main.write_text(main.read_text().replace(prometheus.TOKEN_FILE, str(token)))
    line = [servers.require("promtool"), "check", "config", main]
    checked = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("rules found") == len(list((out / "rules").iterdir()))


@pytest.mark.slow
def test_the_rules_are_those_that_the_hub_evaluates(tmp_path: Path) -> None:
    objectives = tmp_path / "objectives.yaml"
    objectives.write_text(rule_loops.SHIPPED_SLOS.read_text().replace("inference-latency", "chat-latency"))
    settings = fleet_settings.load(tmp_path, '[rules]\nslos = "objectives.yaml"\n')
    rendered = rulefile.load_rules([written(tmp_path, settings) / "rules"])
    evaluated = reload.read_sources(rule_loops.rule_sources(settings)).rules
    said = {(group.name, rule.name, rule.expr) for group in evaluated.groups for rule in group.rules}
    assert {(group.name, rule.name, rule.expr) for group in rendered.groups for rule in group.rules} == said
    assert "slo-chat-latency" in {group.name for group in rendered.groups}


@pytest.mark.slow
def test_the_hub_itself_would_find_the_same_targets_in_it(tmp_path: Path) -> None:
    reader = prometheus_config.ConfigReader(written(tmp_path, fleet_settings.load(tmp_path)) / "prometheus.yml")
    assert reader.reload()
    (gpu,) = [job for job in reader.config.jobs if job.name == "gpu"]
    static = [address for place in gpu.locations for addresses, _ in place.groups for address in addresses]
    assert static == ["a1:9400", "a2:9400", "gpu-01:9400", "gpu-02:9400", "gpu-03:9400", "gpu-04:9400"]
    kept = relabel.relabel(
        gpu.rules, {"__address__": "10.0.0.7:9400", "__meta_watchkeeper_node": "gpu-07", "job": "gpu"}
    )
    assert kept is not None
    assert (kept["instance"], kept["cluster"]) == ("gpu-07", "east")


@pytest.mark.parametrize(
    ("labels", "is_read"),
    [
        ({"app_kubernetes_io_name": "watchkeeper-agent"}, True),
        ({"app": "nvidia-dcgm-exporter"}, True),
        ({"app_kubernetes_io_name": "dcgm-exporter", "app": "x"}, True),
        ({"app": "dcgm-exporter"}, False),
        ({}, False),
    ],
)
def test_of_pods_those_with_a_label_of_the_settings_are_read(labels: dict[str, str], is_read: bool) -> None:
    job = jobs(loading.load(None, {"fleet.kubernetes": True}))["gpu-kubernetes"]
    rules = tuple(_rule(rule) for rule in job["relabel_configs"])
    pod = {f"__meta_kubernetes_pod_label_{name}": value for name, value in labels.items()}
    about = {"container_port_name": "metrics", "phase": "Running", "node_name": "gpu-01"}
    pod |= {f"__meta_kubernetes_pod_{name}": value for name, value in about.items()}
    kept = relabel.relabel(rules, {"__address__": "10.0.0.1:9400", **pod})
    assert (kept is not None) == is_read
    assert kept is None or (kept["instance"], kept["job"], kept["cluster"]) == ("gpu-01", "gpu", "main")


def test_a_newer_exporter_gets_the_names_that_the_rules_ask_for() -> None:
    rules = tuple(_rule(rule) for rule in jobs(config.Settings())["gpu"]["metric_relabel_configs"])
    sample = {"__name__": "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "hostname": "gpu-01", "instance": "x"}
    assert relabel.relabel(rules, sample) == {**dcgm_names.canonical_labels(sample, node="x"), "instance": "x"}
    nameless = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "instance": "gpu-02"}
    assert relabel.relabel(rules, nameless) == {**nameless, "Hostname": "gpu-02"}


def test_alerts_carry_the_team_of_their_namespace(tmp_path: Path) -> None:
    rules = prometheus.alerting(fleet_settings.load(tmp_path))["alert_relabel_configs"]
    alert = {"namespace": "research-7", "Hostname": "gpu-01", "UUID": "GPU-1", "gpu": "0"}
    found = relabel.relabel(tuple(_rule(rule) for rule in rules), alert)
    assert found is not None
    assert (found["team"], found["node"], found["gpu"], found["cluster"]) == ("language", "gpu-01", "GPU-1", "east")


def _rule(plain: dict[str, Any]) -> relabel.RelabelRule:
    action = relabel.RelabelAction(plain.get("action", "replace"))
    return relabel.RelabelRule(**{**plain, "source_labels": tuple(plain.get("source_labels", ())), "action": action})


def test_every_hub_series_that_the_rule_texts_name_is_scraped_from_the_hub(tmp_path: Path) -> None:
    texts = "".join(path.read_text() for path in (written(tmp_path, config.Settings()) / "rules").iterdir())
    of_hub = r"\bwatchkeeper_(?:node|scheduler|fabric|fleet|inventory|pending|queue|quota|events|gpu_workload)_\w+"
    named = set(re.findall(of_hub, re.sub(r"^\s*(#|summary|description|record).*$", "", texts, flags=re.MULTILINE)))
    series_job = jobs(config.Settings())["watchkeeper-series"]
    (match,) = series_job["params"]["match[]"]
    scraped = re.compile(match.removeprefix('{__name__=~"').removesuffix('"}'))
    assert len(named) > 4
    assert [name for name in sorted(named) if not scraped.fullmatch(name)] == []
    # On the hub's own page, which another job reads: twice would be twice as many.
    assert not scraped.fullmatch("watchkeeper_hub_loop_failures_total")


@pytest.mark.parametrize(
    ("more", "is_read"),
    [({}, True), ({"fleet.kubernetes_series": "never"}, False), ({"fleet.kubernetes": False}, False)],
)
def test_what_the_hub_writes_instead_of_kube_state_metrics_is_scraped(more: dict[str, Any], is_read: bool) -> None:
    read = jobs(loading.load(None, {"fleet.kubernetes": True} | more))["watchkeeper-series"]["params"]["match[]"]
    of_kubernetes = [text for text in read if "kube_" in text]
    assert [text.startswith('{job="watchkeeper",__name__=~"') for text in of_kubernetes] == [True] * is_read
    assert all("kube_pod_status_phase" in text and "kube_node_status_condition" in text for text in of_kubernetes)
