"""`render kubernetes`: agent and hub as a kustomization, with optional parts as components.

Manifests and their values are in packs/kubernetes; `manifests` fills them. `helm` makes its chart from the same files,
and `operator` its monitors and rules. No secret is rendered: secrets.sh creates them in the cluster.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from watchkeeper import __version__
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.kit import yaml_text as kit_yaml
from watchkeeper.render import fleet_facts, grafana, manifests, prometheus, settings_text, yaml_text
from watchkeeper.render.tree import RenderedFile

BASE = ("agent", "hub", "rbac", "network", "disruption")
# Components, the value that enables each, and what it is.
COMPONENTS = {
    "prometheus-operator": (
        "prometheusOperator.enabled",
        "PodMonitor, ServiceMonitor and PrometheusRules; needs the Prometheus Operator",
    ),
    "dashboards": ("dashboards.enabled", "dashboards for the sidecar of Grafana's chart"),
    "repair": ("repair.enabled", "permissions to cordon and drain nodes; needed only for repairs"),
    "reclaim": (
        "reclaim.enabled",
        "permissions to scale down workloads with idle GPUs; needed only to reclaim GPUs",
    ),
}
# Components with RBAC permissions of the hub: packs/kubernetes/NAME-rbac.yaml.
RBAC_COMPONENTS = ("repair", "reclaim")
KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
COMPONENT = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
ABOUT = """Agent and hub. Review it with `kubectl kustomize .`, create secrets with secrets.sh, then:
  kubectl apply -k .
Put your changes into a kustomization of your own that lists this directory under `resources`."""
ABOUT_COMPONENTS = """Optional components. Enable one by moving its line to `components`, or with `[render] values`."""


def files(settings: config.Settings) -> list[RenderedFile]:
    values, manifest_facts = load_values(settings), facts(settings)

    def fill(path: str, **more_facts: str) -> str:
        text = rbac_manifest(path) if path in RBAC_COMPONENTS else manifests.read_manifest(path)
        return manifests.fill_manifest(text, values, manifest_facts | more_facts)

    base = [
        RenderedFile(f"base/{name}.yaml", text)
        for name in ("namespace", *BASE)
        if has_objects(text := fill(f"base/{name}.yaml"))
    ]
    listed = "".join(f"  - {file.path.removeprefix('base/')}\n" for file in base)
    rules = {
        f"rules-{name}.yaml": fill("prometheus-operator/rules.yaml", **{"rules.name": name}) + spec
        for name, spec in rule_objects(settings).items()
    }
    boards = {
        f"{name}.yaml": fill("dashboards/dashboard.yaml", **{"dashboard.name": name})
        + f"  {name}.json: |\n    {text}\n"
        for name, text in dashboard_objects(settings).items()
    }
    return [
        RenderedFile("kustomization.yaml", _top_kustomization(values)),
        RenderedFile("base/kustomization.yaml", f"{KUSTOMIZATION}resources:\n{listed}"),
        *base,
        *_component("prometheus-operator", {"monitors.yaml": fill("prometheus-operator/monitors.yaml"), **rules}),
        *_component("dashboards", boards),
        *(file for name in RBAC_COMPONENTS for file in _component(name, {"rbac.yaml": fill(name)})),
        RenderedFile("secrets.sh", fill("chart/secrets.sh"), is_executable=True),
    ]


def load_values(settings: config.Settings) -> dict[str, Any]:
    """The values for these settings, with `[render] values` applied."""
    return dict(kit_yaml.load(values_text(settings)))


def values_text(settings: config.Settings) -> str:
    """The text of values.yaml with its comments, filled from the settings."""
    text = manifests.read_manifest("values.yaml")
    repair = settings.remediate.driver is config.DriverName.KUBERNETES
    written: dict[str, object] = {"cluster": settings.fleet.cluster, "image": settings.render.image}
    for name, value in (written | {"repair": repair, "reclaim": repair and settings.remediate.reclaim}).items():
        text = text.replace(f"@{name}@", json.dumps(value))
    text = text.replace("    @settings@\n", textwrap.indent(hub_settings(settings), "    ", lambda _: True))
    plain = dict(kit_yaml.load(text))
    for chosen in settings.render.values:
        text = _set_value(text, plain, chosen)
    return text


def facts(settings: config.Settings) -> dict[str, str]:
    """Facts of manifests that are not values."""
    return {
        "namespace": settings.render.namespace,
        "version": __version__,
        "job": prometheus.JOB,
        "hubSeries": json.dumps(prometheus.hub_selectors(settings)),
    }


def hub_settings(settings: config.Settings) -> str:
    return settings_text.toml(
        settings,
        {
            "hub.host": "0.0.0.0",  # noqa: S104 (inside its pod; network.yaml limits access)
            "hub.port": None,
            "hub.data": "/var/lib/watchkeeper",
            "hub.tokens": "/etc/watchkeeper-tokens/tokens",
            "fleet.cluster": settings.fleet.cluster,
            "fleet.kubernetes": True,
            "fleet.kubeconfig": None,
            "fleet.kubernetes_context": None,
            "query.data": None,
            "journal.path": None,
        },
    )


def rbac_manifest(name: str) -> str:
    """The RBAC manifest for repairs or reclaims, for a hub in any namespace."""
    return manifests.read_manifest(f"{name}-rbac.yaml").replace("namespace: watchkeeper}", "namespace: @namespace@}")


def rule_objects(settings: config.Settings) -> dict[str, str]:
    """The `spec` of a PrometheusRule for each rule file, by its name."""
    return {
        name.lower().replace("_", "-"): yaml_text.dump({"spec": {"groups": kit_yaml.load(text)["groups"]}})
        for name, text in fleet_facts.rule_texts(settings).items()
    }


def dashboard_objects(settings: config.Settings) -> dict[str, str]:
    boards = grafana.dashboards(settings)
    return {name: json.dumps(board, ensure_ascii=False, sort_keys=True) for name, board in boards.items()}


def has_objects(text: str) -> bool:
    return any(document is not None for document in yaml.safe_load_all(text))


def _set_value(text: str, plain: dict[str, Any], chosen: str) -> str:
    """Set one `path=value` in the text of values.yaml."""
    path, equals, written = chosen.partition("=")
    where = f"render.values: {chosen}"
    if not equals:
        raise SettingsError("expected `path=value`, as in hub.storage.size=200Gi", where=where)
    before = manifests.value(plain, path)
    value = yaml.safe_load(written)
    if type(value) is not type(before):
        kinds = f"{type(before).__name__}, not {type(value).__name__}"
        raise SettingsError(f"`{path}` is a {kinds}", where=where)
    node = key = yaml.compose(text)
    for step in path.split("."):
        key, node = next((key, value) for key, value in node.value if key.value == step)
    text_of = json.dumps(value, ensure_ascii=False)
    is_block = node.style == "|" if isinstance(node, yaml.ScalarNode) else node.flow_style is False
    if not is_block:
        return text[: node.start_mark.index] + text_of + text[node.end_mark.index :]
    # A block ends where the indentation decreases.
    lines, start, indent = text.splitlines(keepends=True), key.start_mark.line, key.start_mark.column
    end = start + 1
    while end < len(lines) and lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > indent:
        end += 1
    return "".join([*lines[:start], f"{' ' * indent}{key.value}: {text_of}\n", *lines[end:]])


def _top_kustomization(values: dict[str, Any]) -> str:
    chosen = [name for name, (path, _) in COMPONENTS.items() if manifests.value(values, path)]
    text = yaml_text.comment(ABOUT) + f"{KUSTOMIZATION}resources:\n  - base\n"
    text += "".join(
        ["components:\n" if chosen else "components: []\n", *(f"  - components/{name}\n" for name in chosen)]
    )
    others = [f"#   components/{name}: {about}\n" for name, (_, about) in COMPONENTS.items() if name not in chosen]
    return text + (yaml_text.comment(ABOUT_COMPONENTS) + "".join(others) if others else "")


def _component(name: str, texts: dict[str, str]) -> Iterator[RenderedFile]:
    listed = "".join(f"  - {path}\n" for path in texts)
    kustomization = yaml_text.comment(COMPONENTS[name][1]) + f"{COMPONENT}resources:\n{listed}"
    for path, text in {"kustomization.yaml": kustomization, **texts}.items():
        yield RenderedFile(f"components/{name}/{path}", text)
