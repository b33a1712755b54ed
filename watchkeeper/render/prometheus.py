"""`render prometheus`: a prometheus.yml that scrapes what the hub scrapes, and every rule that the hub evaluates.

Targets come from [fleet] and `render.targets`, rules through `rule_loops.sources`, labels of alerts from the catalogue,
so that Alertmanager sees the same labels from Prometheus as from the hub. `compose` puts these files beside others.
"""

from __future__ import annotations

import re
from typing import Any

from watchkeeper.catalogue import series
from watchkeeper.clusters.kubernetes import kubernetes_discovery
from watchkeeper.config import settings as config
from watchkeeper.render import fleet_facts, yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.render.yaml_text import InlineMapping, YamlPart
from watchkeeper.scrape import dcgm_names, discovery

# The hub's own name for what it finds; rules leave other jobs out of `node down`.
JOB = discovery.DiscoveryDefaults().job
TOKEN_FILE = "/etc/prometheus/watchkeeper.token"  # noqa: S105
# What only the hub can be asked for; `kubernetes` scrapes the same.
OF_THE_HUB = series.OF_THE_HUB
POD_LABEL = "__meta_kubernetes_pod_label_"
ABOUT = """Prometheus for a fleet of GPUs. Try it with: promtool check config prometheus.yml
Rules: either this Prometheus evaluates them or the hub does. Let the hub follow this one with
  [rules] owner = "server" and server_url = "{url}"
or leave rule_files out."""


def files(settings: config.Settings) -> list[RenderedFile]:
    rules = [RenderedFile(f"rules/{rule.name}.yaml", rule.text) for rule in fleet_facts.rule_texts(settings)]
    return [RenderedFile("prometheus.yml", config_text(settings)), *rules]


def config_text(settings: config.Settings) -> str:
    about = ABOUT.format(url=settings.render.prometheus_url)
    if settings.query.write_url is not None:
        about += "\nThe hub writes to this server: start it with --web.enable-remote-write-receiver"
    parts = [
        YamlPart({"global": _global(settings)}),
        YamlPart({"rule_files": ["rules/*.yaml"]}, "What the hub evaluates, one file for each; objectives included."),
        YamlPart({"alerting": alerting(settings)}, "Alerts get the labels that the hub's own alerts have."),
    ]
    jobs = [*_gpu_jobs(settings), *_hub_jobs(settings)]
    return yaml_text.document(about, parts) + "\n" + yaml_text.dump_list("scrape_configs", jobs)


def _global(settings: config.Settings) -> dict[str, Any]:
    fleet = settings.fleet
    return {
        "scrape_interval": fleet.scrape_interval,
        "scrape_timeout": f"{fleet.scrape_timeout_seconds:g}s",
        "evaluation_interval": settings.rules.interval,
        "external_labels": {"cluster": fleet.cluster},
    }


def alerting(settings: config.Settings) -> dict[str, Any]:
    """Where alerts go, and the labels that routes and inhibition ask for, as the hub's own alerts have them."""
    default = {"source_labels": ["cluster"], "regex": "", "target_label": "cluster"}
    rules = [
        InlineMapping(default, replacement=settings.fleet.cluster),
        _copy("Hostname", "node"),
        _copy("UUID", "gpu"),
        # As in the hub: the first team whose row fits, else the namespace itself.
        _copy("namespace", "team"),
    ]
    rules += [
        _map("namespace", "|".join(map(_pattern, team.namespaces)), "team", team.team)
        for team in reversed(fleet_facts.inventory(settings).teams)
        if team.namespaces
    ]
    found: dict[str, Any] = {"alert_relabel_configs": rules}
    if settings.notify.alertmanager_urls:
        found["alertmanagers"] = [_alertmanager(url) for url in settings.notify.alertmanager_urls]
    return found


def _gpu_jobs(settings: config.Settings) -> list[YamlPart]:
    fleet = settings.fleet
    found: list[YamlPart] = []
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
        found.append(YamlPart({"job_name": JOB, **lists, **_labels(settings, rules)}, why))
    if fleet.reads_pods:
        found.append(_pods(settings))
    return found


def _pods(settings: config.Settings) -> YamlPart:
    where = {"kubeconfig_file": settings.fleet.kubeconfig} if settings.fleet.kubeconfig is not None else {}
    chosen = kubernetes_discovery.selectors(settings.fleet.kubernetes_targets)
    names = list(dict.fromkeys(name for name, _ in chosen))
    wanted = "|".join(_one_of_many(names.index(name), len(names), value) for name, value in chosen)
    rules = [
        _keep([POD_LABEL + re.sub(r"[^a-zA-Z0-9_]", "_", name) for name in names], wanted),
        _keep(["__meta_kubernetes_pod_container_port_name"], "|".join(kubernetes_discovery.PORT_NAMES)),
        _keep(["__meta_kubernetes_pod_phase"], "Running"),
        _cluster(settings),
        _copy("__meta_kubernetes_pod_node_name", "instance"),
        InlineMapping(target_label="job", replacement=JOB),
    ]
    job = {
        "job_name": f"{JOB}-kubernetes",
        "kubernetes_sd_configs": [{"role": "pod", **where}],
        **_labels(settings, rules),
    }
    return YamlPart(
        job,
        "Pods with one of these labels, by the name of their port. The hub reads one pod of a node, the first of the "
        "list; Prometheus reads all, so run either our agent or dcgm-exporter on a node.",
    )


def _labels(settings: config.Settings, rules: list[InlineMapping]) -> dict[str, Any]:
    """Relabelling of targets, then of samples: exporters of all ages in the spelling that the rules use."""
    wanted = fleet_facts.rule_series(settings)
    renamed = sorted((new, old) for new, old in dcgm_names.names_before_4_6().items() if not wanted or old in wanted)
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
    wanted = fleet_facts.rule_series(settings)
    names = sorted(name for name in wanted if name.startswith(OF_THE_HUB))
    found = [YamlPart({"job_name": "watchkeeper-hub", **at}, "The hub about itself.")]
    if names:
        match = f'{{__name__=~"{"|".join(names)}"}}'
        federated = {"honor_labels": True, "metrics_path": "/federate", "params": {"match[]": [match]}}
        why = "What only the hub knows and the rules ask for: expected GPUs, racks, schedulers, fabric."
        found.append(YamlPart({"job_name": "watchkeeper-series", **federated, **at}, why))
    return found


def _alertmanager(url: str) -> dict[str, Any]:
    scheme, _, rest = url.rstrip("/").partition("://")
    address, slash, prefix = rest.partition("/")
    found: dict[str, Any] = {"scheme": scheme, "static_configs": [{"targets": [address]}]}
    return found | ({"path_prefix": f"/{prefix}"} if slash else {})


def _cluster(settings: config.Settings) -> InlineMapping:
    return InlineMapping(target_label="cluster", replacement=settings.fleet.cluster)


def _copy(source: str, target: str) -> InlineMapping:
    return InlineMapping(source_labels=[source], regex="(.+)", target_label=target)


def _map(source: str, pattern: str, target: str, value: str) -> InlineMapping:
    return InlineMapping(source_labels=[source], regex=pattern, target_label=target, replacement=value)


def _keep(sources: list[str], pattern: str) -> InlineMapping:
    return InlineMapping(source_labels=sources, regex=pattern, action="keep")


def _one_of_many(at: int, count: int, value: str) -> str:
    """A pattern for `value` at one place of several joined labels."""
    return "[^;]*;" * at + _escaped(value) + ";[^;]*" * (count - at - 1)


def _pattern(glob: str) -> str:
    """A name with * and ? as a regular expression of Prometheus."""
    return "".join({"*": ".*", "?": "."}.get(letter) or _escaped(letter) for letter in glob)


def _escaped(text: str) -> str:
    """Python escapes a hyphen as well, which reads badly and means the same without."""
    return re.escape(text).replace("\\-", "-")
