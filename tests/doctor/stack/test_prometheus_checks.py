"""What is wrong with a Prometheus: one story for each check, and silence where all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchkeeper.doctor.stack import examine, rule_checks, scrape_checks
from watchkeeper.doctor.stack.facts import Panel, Prometheus, Rule, RuleGroup, Stack, Target

GPU = Target("dcgm-exporter", "n1:9400", "http://n1:9400/metrics", is_up=True, seconds=0.1, timeout_seconds=10)
FIELDS = ("ECC_DBE_VOL_TOTAL", "ROW_REMAP_FAILURE", "THERMAL_VIOLATION")
NAMES = frozenset(
    {"up", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_SM_ACTIVE", *(f"DCGM_FI_DEV_{field}" for field in FIELDS)}
)
WELL = Prometheus(
    "http://p", targets=(GPU,), names=NAMES, alertmanagers=1, with_gpus=frozenset({("dcgm-exporter", "n1:9400")})
)


def alert(expr: str, name: str = "A", **more: str) -> Rule:
    return Rule("g", name, expr, True, **more)


def about(**changes: object) -> Stack:
    return Stack(prometheus=replace(WELL, **changes))  # type: ignore[arg-type]


def test_a_healthy_stack_has_no_finding() -> None:
    stack = about(rules=(alert("DCGM_FI_DEV_GPU_TEMP > 85"),))
    assert examine.examine(stack) == []
    assert examine.list_sources(stack) == ["http://p: 1 targets, 1 rules, 6 metrics"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ('Get "http://n1:9400/metrics": dial tcp 10.0.0.1:9400: connect: connection refused', "connection refused"),
        ('Get "http://n1:9400/metrics": context deadline exceeded', "timeout"),
        ('Get "http://n1:9400/metrics": dial tcp: lookup n1: no such host', "DNS cannot resolve the name"),
        ("server returned HTTP status 401 Unauthorized", "requires authentication"),
        ("server returned HTTP status 404 Not Found", "the path does not exist"),
        ('expected label name, got "INVALID"', "another program answers"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown", "certificate is not trusted"),
    ],
)
def test_a_target_that_is_down_says_why_and_what_to_do(error: str, why: str) -> None:
    (finding,) = scrape_checks.targets_down(about(targets=(replace(GPU, is_up=False, error=error),)).prometheus)
    assert why in finding.title
    assert finding.title.startswith("1 of 1 targets of job dcgm-exporter are down")
    assert finding.fix
    assert 'Get "' not in finding.evidence[0]


def test_a_scrape_that_takes_nearly_all_its_time_is_named_with_both_numbers() -> None:
    (finding,) = scrape_checks.slow_scrapes(about(targets=(replace(GPU, seconds=8.4),)).prometheus)
    assert finding.evidence == ("http://n1:9400/metrics: 8.4 s of 10 s",)
    assert not list(scrape_checks.slow_scrapes(about(targets=(replace(GPU, seconds=7.9),)).prometheus))


def test_a_prometheus_without_a_gpu_exporter_is_found() -> None:
    node = Target("node", "n1:9100", "http://n1:9100/metrics", is_up=True)
    (finding,) = scrape_checks.no_gpu_target(about(targets=(node,), names=frozenset({"up"})).prometheus)
    assert "scrapes no GPU exporter" in finding.title


def test_an_exporter_that_answers_without_gpus_is_found_by_label_or_port() -> None:
    by_label = replace(GPU, job="x", url="http://n2:1/metrics", instance="n2:1")
    by_label = replace(by_label, discovered={"__meta_kubernetes_pod_label_app": "nvidia-dcgm-exporter"})
    (finding,) = scrape_checks.exporter_without_gpus(about(targets=(GPU, by_label)).prometheus)
    assert finding.evidence == ("http://n2:1/metrics: up, no DCGM_FI_DEV_* series",)


def test_ecc_fields_that_the_exporter_omits_by_default_are_found() -> None:
    (finding,) = scrape_checks.fields_missing(about(names=NAMES - {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"}).prometheus)
    assert finding.evidence[0].startswith("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL: uncorrectable memory errors are not detected")
    assert not list(scrape_checks.fields_missing(about(names=frozenset({"up"})).prometheus))


def test_exported_pod_labels_and_gpus_with_two_targets_are_found() -> None:
    labels = {"DCGM_FI_DEV_GPU_UTIL": frozenset({"exported_pod", "pod"})}
    (renamed,) = scrape_checks.labels_renamed(about(labels=labels).prometheus)
    assert "honorLabels: true" in renamed.fix
    (twice,) = scrape_checks.gpus_twice(about(doubled_gpus=8).prometheus)
    assert twice.title == "8 GPUs are reported by more than one target"


def test_a_rule_whose_series_do_not_exist_can_never_fire() -> None:
    rules = (alert("DCGM_FI_DEV_RETIRED_PAGES > 100"), alert("DCGM_FI_DEV_GPU_TEMP > 85", "B"))
    (finding,) = rule_checks.rules_that_never_fire(about(rules=rules))
    assert finding.title.startswith("1 of 2 alerting rules can never fire")
    assert finding.evidence == ("there is no series DCGM_FI_DEV_RETIRED_PAGES: A",)
    assert "NVML has no field DCGM_FI_DEV_RETIRED_PAGES" in finding.fix


def test_a_rule_that_reads_a_dead_recording_names_what_is_missing_below_it() -> None:
    recorded = Rule("g", "a:b", "gone * 2", False)
    rules = (recorded, Rule("g", "c:d", "a:b + 1", False), alert("c:d > 1"))
    (finding,) = rule_checks.rules_that_never_fire(about(rules=rules))
    assert finding.evidence == ("there is no series gone: A",)
    (starved,) = rule_checks.recordings_without_input(about(rules=rules))
    assert starved.evidence == ("there is no series gone: a:b, c:d",)


def test_a_rule_on_a_recording_that_has_nothing_to_record_yet_is_alive() -> None:
    rules = (Rule("g", "hot:count", "DCGM_FI_DEV_GPU_TEMP > 200", False), alert("hot:count > 1"))
    assert examine.examine(about(rules=rules)) == []


def test_agent_series_that_exist_only_in_a_fault_are_not_missing() -> None:
    rules = (alert("watchkeeper_gpu_fault == 1"),)
    assert list(rule_checks.rules_that_never_fire(about(rules=rules)))
    with_agent = about(rules=rules, names=NAMES | {"watchkeeper_agent_spool_events"})
    assert not list(rule_checks.rules_that_never_fire(with_agent))


def test_broken_slow_and_unnotified_rules_are_found() -> None:
    stack = about(
        rules=(alert("up", health="err", error="many-to-many matching not allowed"),),
        groups=(RuleGroup("g", 15, 16.5), RuleGroup("h", 15, 0.1)),
        alertmanagers=0,
    )
    findings = {finding.check: finding for finding in examine.examine(stack)}
    assert findings["broken_rules"].evidence == ("g/A: many-to-many matching not allowed",)
    assert findings["slow_groups"].evidence == ("g: 16.50 s every 15 s",)
    assert "no Alertmanager: alerts send no notifications" in findings["nobody_hears"].title


def test_panels_that_are_empty_are_listed_by_dashboard() -> None:
    panels = (Panel("GPUs", "Temp", "DCGM_FI_DEV_GPU_TEMP"), Panel("GPUs", "Pages", "DCGM_FI_DEV_RETIRED_PAGES"))
    (finding,) = rule_checks.dead_panels(replace(about(), panels=panels))
    assert finding.title.startswith("1 of 2 panels of the dashboard GPUs are empty")
