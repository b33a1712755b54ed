"""`render prometheus`: a prometheus.yml that scrapes what the hub scrapes, and every rule that the hub evaluates.

Targets come from [fleet] and `render.targets`, rules from the hub's rule sources, alert labels from the catalogue.
Alertmanager gets the same labels from Prometheus as from the hub. `compose` includes these files.
"""

from __future__ import annotations

import re
from typing import Any

from watchkeeper.catalogue import series
from watchkeeper.clusters.kubernetes import kubernetes_discovery, kubernetes_series
from watchkeeper.config import settings as config
from watchkeeper.render import fleet_facts, yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.render.yaml_text import InlineMapping, YamlPart
from watchkeeper.scrape import dcgm_names, discovery
from watchkeeper.scrape.jobs import ScrapeJob

# The job name of the hub; the rules for nodes that are down use only this job.
JOB = ScrapeJob().name
TOKEN_FILE = "/etc/prometheus/watchkeeper.token"  # noqa: S105
POD_LABEL = "__meta_kubernetes_pod_label_"
ABOUT = """Prometheus for a fleet of GPUs. Check it with: promtool check config prometheus.yml
Rules: either this Prometheus evaluates them or the hub does. To let the hub read the alerts of this server, set
  [rules] owner = "server" and server_url = "{url}"
Otherwise remove rule_files."""


def files(settings: config.Settings) -> list[RenderedFile]:
    rules = fleet_facts.rule_texts(settings)
    rule_files = [RenderedFile(f"rules/{name}.yaml", text) for name, text in rules.items()]
    return [RenderedFile("prometheus.yml", config_text(settings)), *rule_files]


def config_text(settings: config.Settings) -> str:
    about = ABOUT.format(url=settings.render.prometheus_url)
    if settings.query.write_url is not None:
        about += "\nThe hub writes to this server: start it with --web.enable-remote-write-receiver"
    fleet = settings.fleet
    intervals = {"scrape_interval": fleet.scrape_interval, "scrape_timeout": f"{fleet.scrape_timeout_seconds:g}s"}
    intervals["evaluation_interval"] = settings.rules.interval
    parts = [
        YamlPart({"global": {**intervals, "external_labels": {"cluster": fleet.cluster}}}),
        YamlPart({"rule_files": ["rules/*.yaml"]}, "What the hub evaluates, one file for each; objectives included."),
        YamlPart({"alerting": alerting(settings)}, "Alerts get the labels that the hub's own alerts have."),
    ]
    jobs = [*_gpu_jobs(settings), *_hub_jobs(settings)]
    return yaml_text.document(about, parts) + "\n" + yaml_text.dump_list("scrape_configs", jobs)


def alerting(settings: config.Settings) -> dict[str, Any]:
    """Alertmanager addresses, and the alert labels that routes and inhibition use, as on the hub's alerts."""
    default = {"source_labels": ["cluster"], "regex": "", "target_label": "cluster"}
    rules = [
        InlineMapping(default, replacement=settings.fleet.cluster),
        _copy("Hostname", "node"),
        _copy("UUID", "gpu"),
        # As in the hub: the first matching team, else the namespace.
        _copy("namespace", "team"),
    ]
    for team in reversed(fleet_facts.inventory(settings).teams):
        # Names with * and ? become regular expressions.
        patterns = [_escaped(name).replace(r"\*", ".*").replace(r"\?", ".") for name in team.namespaces]
        rules += [_map("namespace", "|".join(patterns), "team", team.team)] if patterns else []
    alerting: dict[str, Any] = {"alert_relabel_configs": rules}
    if settings.notify.alertmanager_urls:
        alerting["alertmanagers"] = [_alertmanager(url) for url in settings.notify.alertmanager_urls]
    return alerting


def _gpu_jobs(settings: config.Settings) -> list[YamlPart]:
    fleet = settings.fleet
    jobs: list[YamlPart] = []
    lists: dict[str, Any] = {}
    if fleet.sd_files:
        lists["file_sd_configs"] = [{"files": list(fleet.sd_files)}]
    if fleet.sd_urls:
        lists["http_sd_configs"] = [{"url": url} for url in fleet.sd_urls]
    addresses = fleet_facts.scrape_addresses(settings)
    if addresses or not (lists or fleet.reads_pods):
        lists["static_configs"] = [{"targets": addresses}]
    if lists:
        rules = [
            _cluster(settings),
            _copy(f"{discovery.META}cluster", "cluster"),
            InlineMapping(source_labels=["__address__"], regex=r"(.+?)(?::\d+)?", target_label="instance"),
            _copy(f"{discovery.META}node", "instance"),
        ]
        why = "GPU nodes by address. A node's name is its `instance`, as in the hub."
        jobs.append(YamlPart({"job_name": JOB, **lists, **_labels(settings, rules)}, why))
    if fleet.reads_pods:
        jobs.append(_pods(settings))
    return jobs


def _pods(settings: config.Settings) -> YamlPart:
    where = {"kubeconfig_file": settings.fleet.kubeconfig} if settings.fleet.kubeconfig is not None else {}
    chosen = kubernetes_discovery.parse_selectors(settings.fleet.kubernetes_targets)
    names = list(dict.fromkeys(name for name, _ in chosen))
    # Prometheus joins the labels with `;`: each pattern matches one of them.
    before = {name: "[^;]*;" * at for at, name in enumerate(names)}
    after = {name: ";[^;]*" * at for at, name in enumerate(reversed(names))}
    pattern = "|".join(before[name] + _escaped(value) + after[name] for name, value in chosen)
    rules = [
        _keep([POD_LABEL + re.sub(r"[^a-zA-Z0-9_]", "_", name) for name in names], pattern),
        _keep(["__meta_kubernetes_pod_container_port_name"], "|".join(kubernetes_discovery.PORT_NAMES)),
        _keep(["__meta_kubernetes_pod_phase"], "Running"),
        _cluster(settings),
        _copy("__meta_kubernetes_pod_node_name", "instance"),
        InlineMapping(target_label="job", replacement=JOB),
    ]
    about = (
        "Pods with one of these labels and port names. The hub scrapes one pod of a node, the first of the "
        "list; Prometheus scrapes all, so run either the agent or dcgm-exporter on a node."
    )
    job = {"job_name": f"{JOB}-kubernetes", "kubernetes_sd_configs": [{"role": "pod", **where}]}
    return YamlPart({**job, **_labels(settings, rules)}, about)


def _labels(settings: config.Settings, rules: list[InlineMapping]) -> dict[str, Any]:
    """Relabelling of targets and samples: names of all exporter versions become those that the rules use."""
    rule_series = fleet_facts.rule_series(settings)
    renamed = sorted((new, old) for new, old in dcgm_names.names_before_4_6().items() if rule_series.reads(old))
    unnamed = f"{dcgm_names.DCGM_PREFIX}.*;;(.+)"
    metrics = [
        InlineMapping(source_labels=["hostname", "Hostname"], regex="(.+);", target_label="Hostname"),
        InlineMapping(regex="hostname", action="labeldrop"),
        InlineMapping(source_labels=["__name__", "Hostname", "instance"], regex=unnamed, target_label="Hostname"),
        *(_map("__name__", new, "__name__", old) for new, old in renamed),
    ]
    return {"relabel_configs": rules, "metric_relabel_configs": metrics}


def _hub_jobs(settings: config.Settings) -> list[YamlPart]:
    scheme, _, address = settings.render.hub_url.rstrip("/").partition("://")
    signed_in = {"authorization": {"credentials_file": TOKEN_FILE}} if settings.hub.tokens is not None else {}
    at = {"scheme": scheme, **signed_in, "static_configs": [{"targets": [address]}]}
    at["relabel_configs"] = [_cluster(settings)]
    selectors = hub_selectors(settings)
    if settings.fleet.reads_pods and settings.fleet.kubernetes_series is not config.KubernetesSeries.NEVER:
        of_kubernetes = fleet_facts.rule_series(settings).prefixed_selectors(("kube_",))
        selectors += [text.replace("{", f'{{job="{kubernetes_series.JOB}",', 1) for text in of_kubernetes]
    jobs = [YamlPart({"job_name": "watchkeeper-hub", **at}, "The hub's own metrics.")]
    if selectors:
        federated = {"honor_labels": True, "honor_timestamps": False, "metrics_path": "/federate"}
        why = "Series that only the hub has and rules read: expected GPUs, racks, holders of GPUs, schedulers, fabric."
        jobs.append(
            YamlPart({"job_name": "watchkeeper-series", **federated, "params": {"match[]": selectors}, **at}, why)
        )
    return jobs


def hub_selectors(settings: config.Settings) -> list[str]:
    """Selectors of the series that rules read and only the hub exports; `kubernetes` scrapes the same."""
    return fleet_facts.rule_series(settings).prefixed_selectors(series.FEDERATED_PREFIXES)


def _alertmanager(url: str) -> dict[str, Any]:
    scheme, _, rest = url.rstrip("/").partition("://")
    address, slash, prefix = rest.partition("/")
    job: dict[str, Any] = {"scheme": scheme, "static_configs": [{"targets": [address]}]}
    return job | ({"path_prefix": f"/{prefix}"} if slash else {})


def _cluster(settings: config.Settings) -> InlineMapping:
    return InlineMapping(target_label="cluster", replacement=settings.fleet.cluster)


def _copy(source: str, target: str) -> InlineMapping:
    return InlineMapping(source_labels=[source], regex="(.+)", target_label=target)


def _map(source: str, pattern: str, target: str, value: str) -> InlineMapping:
    return InlineMapping(source_labels=[source], regex=pattern, target_label=target, replacement=value)


def _keep(sources: list[str], pattern: str) -> InlineMapping:
    return InlineMapping(source_labels=sources, regex=pattern, action="keep")


def _escaped(text: str) -> str:
    """Escape a text for Prometheus; Python also escapes hyphens, which is not needed."""
    return re.escape(text).replace("\\-", "-")
