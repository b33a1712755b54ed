"""Run all checks of the monitoring stack; a check is a function from facts to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from watchkeeper.doctor.stack import kubernetes_checks, rule_checks, scrape_checks
from watchkeeper.doctor.stack.facts import KubernetesObjects, Prometheus, Stack, StackFinding

# The most severe first: no data, then missing data, then misleading data.
KUBERNETES_CHECKS: tuple[Callable[[KubernetesObjects], Iterator[StackFinding]], ...] = (
    kubernetes_checks.cluster_dns_down, kubernetes_checks.api_unreachable, kubernetes_checks.stuck_in_init,
    kubernetes_checks.control_plane_taint, kubernetes_checks.monitors_not_selected,
    kubernetes_checks.monitors_without_service, kubernetes_checks.wrong_port_names,
    kubernetes_checks.services_without_pods, kubernetes_checks.exporters_failing, kubernetes_checks.host_ports_taken,
    kubernetes_checks.gpu_nodes_without_exporter,
)  # fmt: skip
SCRAPE_CHECKS: tuple[Callable[[Prometheus], Iterator[StackFinding]], ...] = (
    scrape_checks.no_gpu_target, scrape_checks.targets_down, scrape_checks.exporter_without_gpus,
    scrape_checks.slow_scrapes,
)  # fmt: skip
RULE_CHECKS: tuple[Callable[[Stack], Iterator[StackFinding]], ...] = (
    rule_checks.broken_rules, rule_checks.no_alertmanager, rule_checks.rules_that_never_fire,
    rule_checks.recordings_without_input, rule_checks.slow_groups,
)  # fmt: skip
SERIES_CHECKS = (scrape_checks.fields_missing, scrape_checks.labels_renamed, scrape_checks.gpus_twice)


def examine(stack: Stack) -> list[StackFinding]:
    server, findings = stack.prometheus, list[StackFinding]()
    if stack.kubernetes is not None:
        findings += [finding for check in KUBERNETES_CHECKS for finding in check(stack.kubernetes)]
    if server is not None:
        findings += [finding for check in SCRAPE_CHECKS for finding in check(server)]
        findings += [finding for check in RULE_CHECKS for finding in check(stack)]
        findings += [finding for check in SERIES_CHECKS for finding in check(server)]
        findings += rule_checks.dead_panels(stack)
    return findings


def list_sources(stack: Stack) -> list[str]:
    lines = []
    if stack.prometheus is not None:
        server = stack.prometheus
        lines.append(
            f"{server.url}: {len(server.targets)} targets, {len(server.rules)} rules, {len(server.names):,} metrics"
        )
        lines += [f"not read: {path} ({why})" for path, why in server.unread.items()]
    if stack.kubernetes is not None:
        cluster = stack.kubernetes
        lines.append(
            f"Kubernetes: {len(cluster.nodes)} nodes, {len(cluster.pods)} pods, {len(cluster.services)} services, "
            f"{len(cluster.service_monitors) + len(cluster.pod_monitors)} monitors, "
            f"{len(cluster.prometheuses)} Prometheus objects"
        )
        lines += [f"not read: {path} ({why})" for path, why in cluster.unread.items()]
    if stack.panels:
        lines.append(f"{len({panel.dashboard for panel in stack.panels})} dashboards: {len(stack.panels)} queries")
    return lines
