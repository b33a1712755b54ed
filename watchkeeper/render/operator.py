"""`render operator`: GPU Operator, kube-prometheus-stack and Watchkeeper for a cluster, with an installer.

Values and ConfigMaps are packs/operator filled from the settings; MIG layouts come from `mig`, the chart from `helm`.
install.sh checks the cluster first, has a dry run, and can be run again.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from typing import Any

from watchkeeper.catalogue import metrics
from watchkeeper.config import settings as config
from watchkeeper.render import fleet_facts, grafana, helm, kubernetes, manifests, mig, tree, yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.render.yaml_text import YamlPart

PACK = "operator"
FILLED = ("gpu-operator-values.yaml", "kube-prometheus-stack-values.yaml", "sharing.yaml", "model-cache.yaml")
# The version that the values were written for and checked against.
OPERATOR_VERSION = "v26.7.0"
OPERATOR_NAMESPACE = "gpu-operator"
OWN_AGENT = config.KUBERNETES_TARGETS[0]
ABOUT_MIG = """MIG layouts for the operator's MIG manager; select one for a node:
  kubectl label --overwrite node NAME nvidia.com/mig.config=all-balanced
GPUs must be idle, and the node's label nvidia.com/mig.config.state shows the result."""
ABOUT_FIELDS = """Fields for dcgm-exporter in its counters format: those that the shipped rules and dashboards read."""


def files(settings: config.Settings) -> list[RenderedFile]:
    models = list(settings.render.models)
    values = {"models": models, "fetch": "\n".join(f"hf download {shlex.quote(model)}" for model in models)}
    facts = _facts(settings)

    def fill(name: str) -> str:
        return manifests.fill_manifest(manifests.read_manifest(name, PACK), values, facts)

    layouts = _config_map("watchkeeper-mig", "config.yaml", mig.config_text(settings), about=ABOUT_MIG)
    return [
        *(RenderedFile(name, fill(name)) for name in FILLED),
        RenderedFile("mig.yaml", layouts),
        RenderedFile("dcgm-metrics.yaml", _fields(settings)),
        RenderedFile("install.sh", fill("install.sh"), is_executable=True),
        *tree.in_folder(helm.files(settings), "chart"),
    ]


def fields(settings: config.Settings) -> list[str]:
    series = fleet_facts.rule_series(settings)
    return sorted({name for name in metrics.field_names() if series.reads(name)} | grafana.dcgm_fields(settings))


def _facts(settings: config.Settings) -> dict[str, str]:
    models = " ".join(settings.render.models)
    labels = kubernetes.load_values(settings)["prometheusOperator"]["labels"]
    return {
        "namespace": settings.render.namespace,
        "cluster": settings.fleet.cluster,
        "interval": settings.fleet.scrape_interval,
        "evaluation": settings.rules.interval,
        "retention": settings.query.retention,
        "operatorVersion": OPERATOR_VERSION,
        "labels": json.dumps(labels),
        # No second exporter beside the agent.
        "exporter": json.dumps(settings.fleet.kubernetes_targets[:1] != (OWN_AGENT,)),
        "receiver": json.dumps(settings.query.write_url is not None),
        "digest": hashlib.sha256(models.encode()).hexdigest()[:8],
    }


def _fields(settings: config.Settings) -> str:
    """The counters file of dcgm-exporter: name, type, help; without fields that the catalogue lacks."""
    rows = [row for name in fields(settings) if (row := metrics.lookup(name)) is not None and row.name == name]
    lines = [f"{row.name}, {row.type}, {row.meaning.replace(',', ';')}" for row in rows]
    return _config_map("watchkeeper-dcgm-metrics", "dcgm-metrics.csv", "\n".join(lines) + "\n", about=ABOUT_FIELDS)


def _config_map(name: str, key: str, text: str, *, about: str) -> str:
    config_map: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": OPERATOR_NAMESPACE},
        "data": {key: text},
    }
    return yaml_text.document(about, [YamlPart(config_map)])
